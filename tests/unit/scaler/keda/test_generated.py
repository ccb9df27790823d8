from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.generate import HERE, generate


def test_the_committed_messages_are_what_protoc_makes_of_the_interface() -> None:
    stale = [name for name, text in generate().items() if (HERE / name).read_text("utf-8") != text]
    assert not stale, "run python -m scaler.keda.generate"


def test_names_and_numbers_are_kedas() -> None:
    """Read from kedacore/keda, pkg/scalers/externalscaler/externalscaler.proto."""
    file = pb.DESCRIPTOR
    assert file.package == "externalscaler"
    fields = {
        message.name: {field.name: (field.number, field.type) for field in message.fields}
        for message in file.message_types_by_name.values()
    }
    string, boolean, int64, double, message = 9, 8, 3, 1, 11
    assert fields == {
        "ScaledObjectRef": {
            "name": (1, string),
            "namespace": (2, string),
            "scalerMetadata": (3, message),
        },
        "IsActiveResponse": {"result": (1, boolean)},
        "GetMetricSpecResponse": {"metricSpecs": (1, message)},
        "MetricSpec": {
            "metricName": (1, string),
            "targetSize": (2, int64),
            "targetSizeFloat": (3, double),
        },
        "GetMetricsRequest": {"scaledObjectRef": (1, message), "metricName": (2, string)},
        "GetMetricsResponse": {"metricValues": (1, message)},
        "MetricValue": {
            "metricName": (1, string),
            "metricValue": (2, int64),
            "metricValueFloat": (3, double),
        },
    }


def test_calls_are_kedas() -> None:
    service = pb.DESCRIPTOR.services_by_name["ExternalScaler"]
    calls = {
        method.name: (method.input_type.name, method.output_type.name, method.server_streaming)
        for method in service.methods
    }
    assert service.full_name == "externalscaler.ExternalScaler"
    assert calls == {
        "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
        "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
        "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
        "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
        "StreamMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", True),
    }
