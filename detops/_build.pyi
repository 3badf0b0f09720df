TORCH: str
PYTHON: str
CUDA: str | None
