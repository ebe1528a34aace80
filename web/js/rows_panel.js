// Rows of sensors: prediction against truth. (to come)
export class RowsPanel {
  open() {}
}
