"""Target: the account, region, bucket, repository and role of a submission, with all defaults filled in."""

from __future__ import annotations

from rollyard.launchers.sagemaker.settings import FILE, SageMakerSettings
from rollyard.records.errors import OperatorError
from rollyard.records.io.aws import aws_errors
from rollyard.records.types import Record

FEATURE = "ng_submit"
ANY_ACCOUNT, ANY_REGION = "ACCOUNT", "REGION"
"""Shown instead of values that are not known without calling AWS."""


class Target(Record):
    """Where a job runs and what it uses."""

    account: str
    region: str
    bucket: str
    prefix: str
    repository: str
    role_arn: str | None
    endpoint_url: str | None

    @property
    def partition(self) -> str:
        """The part of AWS that the region belongs to, as in ARNs."""
        return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(self.region.rpartition("-")[0].rpartition("-")[0], "aws")

    @property
    def registry(self) -> str:
        """Host of the account's ECR registry."""
        return f"{self.account}.dkr.ecr.{self.region}.amazonaws.com" + (".cn" if self.partition == "aws-cn" else "")

    @property
    def s3(self) -> str:
        """URL below which the project's objects are: s3://bucket/prefix."""
        return f"s3://{self.bucket}/{self.prefix}"

    def image(self, tag: str) -> str:
        return f"{self.registry}/{self.repository}:{tag}"

    def console_url(self, job: str) -> str:
        return f"https://{self.region}.console.aws.amazon.com/sagemaker/home?region={self.region}#/jobs/{job}"


def find_target(settings: SageMakerSettings, *, offline: bool = False) -> Target:
    """Return the target of the settings. Asks STS for the account unless it is set.

    `offline`: uses placeholders instead of asking. Raises OperatorError if there is no region, AwsError if STS fails.
    """
    account, region = settings.account, settings.region
    if offline:
        account, region = account or ANY_ACCOUNT, region or ANY_REGION
    else:
        sts = settings.access.client("sts", FEATURE)
        region = region or sts.meta.region_name
        if region is None or region == "aws-global":
            raise OperatorError(f"no AWS region is set; pass --region, or set AWS_DEFAULT_REGION or region in {FILE}")
        if account is None:
            with aws_errors("the AWS account cannot be determined"):
                account = str(sts.get_caller_identity()["Account"])
    target = Target(
        account=account,
        region=region,
        bucket=settings.bucket or f"sagemaker-{region}-{account}",
        prefix=settings.prefix,
        repository=settings.repository,
        role_arn=settings.role if settings.role and settings.role.startswith("arn:") else None,
        endpoint_url=settings.endpoint_url,
    )
    if settings.role and target.role_arn is None:
        arn = f"arn:{target.partition}:iam::{account}:role/{settings.role}"
        return target.model_copy(update={"role_arn": arn})
    return target
