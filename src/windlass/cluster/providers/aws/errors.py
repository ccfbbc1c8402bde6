"""Errors of EC2 as the four kinds of the provider protocol, each with what to type.

Source: Amazon EC2 Developer Guide, "Error codes for the Amazon EC2 API"; botocore, `exceptions.py`.
"""

from __future__ import annotations

from windlass.cluster.providers.protocol import (
    NoCapacityError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)

__all__ = ["code_of", "translate"]

_NO_CAPACITY = frozenset(
    {
        "InsufficientAddressCapacity",
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow",
        "Unsupported",
    }
)
_THROTTLED = frozenset(
    {
        "EC2ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_THROTTLED_S = 5.0
# Codes of replies after which it is not known what was done; so are all replies with a status of 500 and above.
_UNCERTAIN = frozenset({"InternalError", "InternalFailure", "RequestTimeout", "ServiceUnavailable", "Unavailable"})

_CREDENTIALS = "`aws configure`, or `aws sso login`, and check with `aws sts get-caller-identity`"
_QUOTA = "request a higher quota: https://console.aws.amazon.com/servicequotas, or choose other types"
_HINTS = {
    "AuthFailure": _CREDENTIALS,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "once for the account: `aws iam create-service-linked-role "
    "--aws-service-name spot.amazonaws.com`",
    "Blocked": "ask AWS support: the account is blocked",
    "ExpiredToken": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "AccessDenied": "ask for the permission, or choose other credentials with `AWS_PROFILE`",
    "UnauthorizedOperation": "ask for the permission, or choose other credentials with `AWS_PROFILE`",
    "OptInRequired": "enable the region for the account, or choose another `place.aws.region`",
    "PendingVerification": "wait until AWS has verified the account, at most 4 hours",
    "RequestExpired": "set this machine's clock: `timedatectl set-ntp true`",
    "InstanceLimitExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "InvalidAMIID.NotFound": "choose an image of this region as `place.aws.image`",
    "InvalidAMIID.Malformed": "choose an image of this region as `place.aws.image`",
    "InvalidGroup.NotFound": "`aws ec2 describe-security-groups` lists those for `place.aws.security_groups`",
    "InvalidKeyPair.NotFound": "`aws ec2 describe-key-pairs` lists those for `place.aws.key_name`",
    "InvalidSubnetID.NotFound": "`aws ec2 describe-subnets` lists those for `place.aws.subnets`",
    "MissingInput": "add a subnet as `place.aws.subnets`: the region has no default network",
    "VPCIdNotSpecified": "add a subnet as `place.aws.subnets`: the region has no default network",
    "InvalidParameterValue": "correct the value in the cluster's file",
    "InvalidParameterCombination": "correct `options` in the cluster's file",
}


def code_of(error: Exception) -> str:
    """Return the API's own code of an error, such as `InsufficientInstanceCapacity`; empty if there was no reply."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def translate(error: Exception, what: str) -> ProviderError:
    """Return an error of botocore as one of the protocol.

    Args:
        what: what was asked for, for the message: `cannot list machines`.
    """
    import botocore.exceptions as aws  # lazy: only with boto3

    if isinstance(error, aws.ClientError):
        return _of_reply(error, what)
    message = f"{what}: {error}"
    if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError):
        return RefusedError(f"{what}: no credentials for AWS", hint=_CREDENTIALS)
    if isinstance(error, aws.UnauthorizedSSOTokenError | aws.TokenRetrievalError | aws.SSOTokenLoadError):
        return RefusedError(message, hint=_CREDENTIALS)
    if isinstance(error, aws.CredentialRetrievalError | aws.ProfileNotFound | aws.ConfigNotFound):
        return RefusedError(message, hint=_CREDENTIALS)
    if isinstance(error, aws.ParamValidationError):
        return RefusedError(message, hint="correct `options` in the cluster's file")
    if isinstance(error, aws.NoRegionError | aws.InvalidRegionError | aws.UnknownEndpointError):
        return RefusedError(message, hint="correct `place.aws.region`")
    return UncertainError(message, hint="check the network, and `place.aws.region`")


def _of_reply(error: Exception, what: str) -> ProviderError:
    code = code_of(error)
    response: dict[str, dict[str, object]] = getattr(error, "response", {})
    text = str(response.get("Error", {}).get("Message", "")) or str(error)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = f"{what}: {text} ({code})"
    if code in _THROTTLED:
        return ThrottledError(message, after_s=_THROTTLED_S)
    if code in _NO_CAPACITY or (code == "InvalidParameterValue" and "for InstanceType" in text):
        return NoCapacityError(message, hint="add types, zones or regions, or try again later")
    if code in _UNCERTAIN or (isinstance(status, int) and status >= 500):
        return UncertainError(message, hint="AWS did not say what was done; the next command asks")
    return RefusedError(message, hint=_HINTS.get(code, "correct the cluster's file"))
