"""A fuzzer of every op in the schema list; see docs/reliability.md."""
