"""One training run: its settings, its folder, training, measuring and export."""
