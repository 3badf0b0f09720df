"""A fuzzer of every op of the schema list: see docs/reliability.md."""
