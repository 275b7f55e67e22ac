"""Networks in files: sparse weights, architectures, ONNX."""
