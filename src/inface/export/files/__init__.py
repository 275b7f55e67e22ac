"""Networks in files: sparse weights, architectures, ONNX and torch.export."""
