"""Where onnxruntime keeps its native module; programs import their exceptions from here."""
