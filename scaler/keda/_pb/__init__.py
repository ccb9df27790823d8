"""Messages of KEDA's external-scaler interface; `externalscaler_pb2` is generated, never edited."""
