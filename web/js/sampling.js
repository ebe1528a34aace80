// From logits to a token. The draw is that of ocean_runtime/sampling.py: the same seed and step give the same token.

export function logSoftmax(logits) {
  let most = -Infinity;
  for (const logit of logits) most = Math.max(most, logit);
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - most);
  return Float64Array.from(logits, (logit) => logit - most - Math.log(sum));
}

export function sample(logits, { step, seed = 0, temperature = 1, topK = null }) {
  const scores = Float64Array.from(logits);
  scores[0] = -Infinity; // the unknown token is never drawn
  if (temperature === 0) return argmax(scores);
  for (let i = 0; i < scores.length; i++) scores[i] /= temperature;
  if (topK !== null && topK < scores.length - 1) {
    const least = Float64Array.from(scores).sort()[scores.length - topK];
    for (let i = 0; i < scores.length; i++) if (scores[i] < least) scores[i] = -Infinity;
  }
  const uniform = philox(BigInt(seed), BigInt(step));
  for (let i = 0; i < scores.length; i++) {
    let u = 1;
    while (u >= 1) u = 1 - uniform();
    scores[i] -= Math.log(-Math.log(u)); // Gumbel's maximum
  }
  return argmax(scores);
}

function argmax(scores) {
  let best = 0;
  for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
  return best;
}

// Uniform numbers in [0, 1) from Philox 4x64-10 (Salmon et al., 2011), in the order of numpy.random.Philox.
function philox(key0, key1) {
  const mask = (1n << 64n) - 1n;
  let counter = 0n;
  let ready = [];
  return () => {
    if (!ready.length) {
      counter += 1n;
      let [a, b, c, d] = [counter, 0n, 0n, 0n];
      let [k0, k1] = [key0 & mask, key1 & mask];
      for (let round = 0; round < 10; round++) {
        const left = 0xd2e7470ee14c6c93n * a;
        const right = 0xca5a826395121157n * c;
        [a, b, c, d] = [(right >> 64n) ^ b ^ k0, right & mask, (left >> 64n) ^ d ^ k1, left & mask];
        k0 = (k0 + 0x9e3779b97f4a7c15n) & mask;
        k1 = (k1 + 0xbb67ae8584caa73bn) & mask;
      }
      ready = [a, b, c, d];
    }
    return Number(ready.shift() >> 11n) / 2 ** 53;
  };
}
