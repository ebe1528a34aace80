#!/usr/bin/env bash
# Copies what the page needs of npm's packages into vendor/: what lies there is all that the page loads of others.
set -euo pipefail
cd "$(dirname "$0")"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
rm -rf vendor
mkdir -p vendor/onnxruntime-web vendor/uplot vendor/noble-hashes
cp node_modules/onnxruntime-web/dist/{ort.wasm.bundle.min.mjs,ort-wasm-simd-threaded.wasm} vendor/onnxruntime-web/
cp node_modules/onnxruntime-web/README.md vendor/onnxruntime-web/
cp node_modules/uplot/dist/{uPlot.esm.js,uPlot.min.css} node_modules/uplot/LICENSE vendor/uplot/
cp node_modules/@noble/hashes/{sha2,_md,_u64,utils}.js node_modules/@noble/hashes/LICENSE vendor/noble-hashes/
