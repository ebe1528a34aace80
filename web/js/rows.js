// Rows of sensors through a stream. (to come)
export class Rows {}
export const observationOf = () => null;
