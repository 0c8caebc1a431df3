"""Reads and downloads objects from S3. Needs the `aws` extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.optional import load
from rollyard.records.types import Record

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
_LIBRARIES = ("boto3", "botocore", "s3transfer")

_THROTTLED = {
    *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"),
    *("TooManyRequestsException", "RequestLimitExceeded", "BandwidthLimitExceeded", "SlowDown", "LimitExceeded"),
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_INVALID = {"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_INVALID |= {"InvalidToken", "AuthFailure", "IncompleteSignature", "MissingAuthenticationToken"}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "Forbidden", "403"}
_ELSEWHERE = {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_NOT_SIGNED_IN = {"SSOTokenLoadError", "UnauthorizedSSOTokenError", "TokenRetrievalError", "CredentialRetrievalError"}
_UNREACHABLE = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"),
    *("ProxyConnectionError", "SSLError", "HTTPClientError", "ConnectionError", "ResponseStreamingError"),
}
_SET_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class AwsAccess(Record):
    """Which account, region and endpoint AWS clients use. Anything not set comes from boto3's own configuration."""

    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    """URL that replaces the endpoints of all services, such as that of a local server."""

    def client(self, service: str, feature: str) -> Any:
        """Return boto3's client of a service. Raises OperatorError, naming `feature`, if boto3 is not installed."""
        boto3 = load("boto3", "aws", feature)
        config = load("botocore.config", "aws", feature)
        with aws_errors(f"{feature} cannot use AWS"):
            session = boto3.Session(profile_name=self.profile, region_name=self.region)
            return session.client(
                service,
                endpoint_url=self.endpoint_url,
                config=config.Config(
                    retries={"mode": "standard"},  # 3 attempts, or AWS_MAX_ATTEMPTS
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                ),
            )


class AwsError(RunError):
    """A call to AWS failed, and boto3 does not retry it any further."""

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        """AWS's error code, such as NoSuchBucket; the exception's name if no response arrived."""
        self.status = status
        """HTTP status; 0 if no response arrived."""


@contextmanager
def aws_errors(failed: str) -> Iterator[None]:
    """Raise AwsError for every exception of boto3. `failed`: what cannot be done, such as `bucket b cannot be read`."""
    try:
        yield
    except Exception as error:  # botocore creates its error classes at run time
        invalid_url = isinstance(error, ValueError) and str(error).startswith("Invalid endpoint")
        if type(error).__module__.partition(".")[0] not in _LIBRARIES and not invalid_url:
            raise
        code, status = _code_of(error)
        raise AwsError(f"{failed}: {explain(error)}", code, status) from error


def explain(error: Exception) -> str:
    """Describe an exception of boto3 in one line: what happened, and what to do if that is known."""
    code, status = _code_of(error)
    text = " ".join(_message(error).split()).rstrip(".")
    if code in _THROTTLED or status in (429, 503):
        return f"AWS throttled the request repeatedly ({code}). Wait a minute and repeat the command"
    if code in _EXPIRED:
        return f"the AWS credentials have expired ({code}). Sign in again or renew the session token"
    if code in _INVALID:
        return f"AWS does not accept the credentials ({code}: {text}). Check AWS_ACCESS_KEY_ID and AWS_PROFILE"
    if code in ("NoCredentialsError", "PartialCredentialsError"):
        return f"no complete AWS credentials were found; {_SET_KEYS}"
    if code in _NOT_SIGNED_IN:
        return f"the AWS credentials cannot be loaded ({text}). Sign in again, for example with `aws sso login`"
    if code in ("NoRegionError", "InvalidRegionError"):
        return "no valid AWS region is set; set AWS_DEFAULT_REGION, such as us-west-2"
    if code in _DENIED:
        return f"access denied ({text}). `ng_submit --print-iam` prints the policy that is needed"
    if code == "NoSuchBucket":
        return "the bucket does not exist. Create it, or name another one"
    if code == "400":  # a response without a body to HEAD, which is how S3 refuses an expired session token
        return f"S3 refused the request without a reason ({text}). The credentials have probably expired: sign in again"
    if code in _ELSEWHERE:
        return f"the bucket is in another region than the request ({code}). Set the region of the bucket"
    if code in _UNREACHABLE:
        return f"the service cannot be reached ({text}). Check the region, AWS_ENDPOINT_URL and the network"
    if code == "RequestTimeTooSkewed":
        return "the clock of this host differs from AWS's by more than 15 minutes. Set the clock"
    return f"{code}: {text}" if status else text


def _code_of(error: Exception) -> tuple[str, int]:
    """Return AWS's error code and the HTTP status; the exception's name and 0 if there was no response."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return type(error).__name__, 0
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(response.get("Error", {}).get("Code", status)), int(status)


def _message(error: Exception) -> str:
    response = getattr(error, "response", None)
    message = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return str(message or error)


SCHEME = "s3://"


def read_text(address: str) -> str:
    """Return the text of a local file or an S3 object. Raises OperatorError if it cannot be read."""
    try:
        data = _object(address) if address.startswith(SCHEME) else Path(address).read_bytes()
        return data.decode("utf-8-sig")
    except OperatorError:
        raise
    except OSError as error:
        raise OperatorError(f"{address} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OperatorError(f"{address} is not UTF-8 text: {error}") from error


def split(address: str) -> tuple[str, str]:
    """Return the bucket and key of `s3://bucket/key`. Raises OperatorError for any other format."""
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not address.startswith(SCHEME) or not bucket or not key:
        raise OperatorError(f"{address!r} is not an S3 URL; expected s3://bucket/key")
    return bucket, key


def client(feature: str, access: AwsAccess | None = None) -> Any:
    """Return boto3's S3 client. Raises OperatorError, with the `feature` that needs it, if boto3 is not installed."""
    return (access or AwsAccess()).client("s3", feature)


def fetch(address: str, target: Any) -> None:
    """Download an S3 object to `target`, such as a Path. Raises OperatorError if it cannot be read."""
    bucket, key = split(address)
    with _operator_errors(address), target.open("wb") as file:
        client(address).download_fileobj(bucket, key, file)


def _object(address: str) -> bytes:
    bucket, key = split(address)
    with _operator_errors(address):
        data: bytes = client(address).get_object(Bucket=bucket, Key=key)["Body"].read()
    return data


@contextmanager
def _operator_errors(address: str) -> Iterator[None]:
    """An address that cannot be read is a mistake on the command line or in a config."""
    try:
        with aws_errors(f"{address} cannot be read"):
            yield
    except AwsError as error:
        message = str(error).replace(f"{address} cannot use AWS", f"{address} cannot be read", 1)
        raise OperatorError(message) from error
