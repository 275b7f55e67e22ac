"""What the commands share: options, progress, tables."""
