"""Bodies and feature pyramids."""
