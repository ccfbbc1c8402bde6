"""Every error of EC2 and of botocore is one of the protocol's four, with what to type."""

from __future__ import annotations

import pytest

from windlass.cluster.providers.aws.checks import quota_code
from windlass.cluster.providers.aws.errors import translate
from windlass.cluster.providers.protocol import (
    NoCapacityError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)

aws = pytest.importorskip("botocore.exceptions", reason="needs aws: run the tests with `make test`")


def reply(code: str, status: int = 400, message: str = "words of EC2") -> Exception:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = aws.ClientError(response, "RunInstances")
    return error


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (reply("InsufficientInstanceCapacity", 500), NoCapacityError, "add types, zones or regions"),
        (reply("MaxSpotInstanceCountExceeded"), NoCapacityError, "add types, zones or regions"),
        (reply("Unsupported"), NoCapacityError, "add types, zones or regions"),
        (reply("RequestLimitExceeded", 503), ThrottledError, ""),
        (reply("Throttling"), ThrottledError, ""),
        (reply("InternalError", 500), UncertainError, "the next command asks"),
        (reply("Unavailable", 503), UncertainError, "the next command asks"),
        (reply("SomethingNew", 502), UncertainError, "the next command asks"),
        (reply("AuthFailure", 401), RefusedError, "aws configure"),
        (reply("ExpiredToken"), RefusedError, "aws configure"),
        (reply("UnauthorizedOperation", 403), RefusedError, "AWS_PROFILE"),
        (reply("VcpuLimitExceeded"), RefusedError, "quota"),
        (reply("RequestExpired"), RefusedError, "timedatectl set-ntp true"),
        (reply("OptInRequired"), RefusedError, "place.aws.region"),
        (reply("InvalidAMIID.NotFound"), RefusedError, "place.aws.image"),
        (reply("InvalidKeyPair.NotFound"), RefusedError, "place.aws.key_name"),
        (reply("InvalidSubnetID.NotFound"), RefusedError, "place.aws.subnets"),
        (reply("SomethingNew"), RefusedError, "correct the cluster's file"),
        (aws.NoCredentialsError(), RefusedError, "aws configure"),
        (aws.PartialCredentialsError(provider="env", cred_var="x"), RefusedError, "aws configure"),
        (aws.ProfileNotFound(profile="p"), RefusedError, "aws configure"),
        (aws.ParamValidationError(report="bad"), RefusedError, "options"),
        (aws.NoRegionError(), RefusedError, "place.aws.region"),
        (aws.EndpointConnectionError(endpoint_url="http://x"), UncertainError, "network"),
        (aws.ConnectTimeoutError(endpoint_url="http://x"), UncertainError, "network"),
        (aws.ReadTimeoutError(endpoint_url="http://x"), UncertainError, "network"),
        (aws.ConnectionClosedError(endpoint_url="http://x"), UncertainError, "network"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, Exception) else "",
)
def test_errors_are_of_four_kinds(error: Exception, kind: type[ProviderError], hint: str) -> None:
    found = translate(error, "cannot make m5.large")
    assert type(found) is kind
    assert found.message.startswith("cannot make m5.large: ")
    assert hint in found.hint


def test_the_message_has_the_words_and_the_code_of_ec2() -> None:
    found = translate(reply("VcpuLimitExceeded"), "cannot make g5.xlarge")
    assert found.message == "cannot make g5.xlarge: words of EC2 (VcpuLimitExceeded)"
    assert found.code == "provider-refused"


def test_throttled_requests_say_how_long_to_wait() -> None:
    found = translate(reply("RequestLimitExceeded", 503), "cannot list machines")
    assert isinstance(found, ThrottledError)
    assert found.after_s == 5.0


@pytest.mark.parametrize(
    ("kind", "is_spot", "code"),
    [
        ("m5.large", False, "L-1216C47A"),
        ("t3.micro", True, "L-34B43A08"),
        ("g5.xlarge", False, "L-DB2E81BA"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5.48xlarge", True, "L-C4BD4855"),
        ("p5.48xlarge", False, "L-417A185B"),
        ("inf2.xlarge", False, "L-1945791B"),
        ("dl1.24xlarge", False, ""),
        ("u-3tb1.56xlarge", False, ""),
        ("", False, ""),
    ],
)
def test_quotas_are_those_of_the_family(kind: str, is_spot: bool, code: str) -> None:
    assert quota_code(kind, is_spot=is_spot) == code
