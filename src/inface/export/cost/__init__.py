"""What a network costs before and after export."""
