"""The paper's claims, one module each; `python benchmarks/claims.py` runs them and writes docs/evidence.md."""
