"""The IAM policy that submitting jobs needs."""

from __future__ import annotations

from typing import Any

from rollyard.launchers.sagemaker.target import Target

REPOSITORY_ACTIONS = (
    "ecr:CreateRepository",
    "ecr:DescribeRepositories",
    "ecr:DescribeImages",
    "ecr:BatchCheckLayerAvailability",
    "ecr:GetDownloadUrlForLayer",
    "ecr:BatchGetImage",
    "ecr:InitiateLayerUpload",
    "ecr:UploadLayerPart",
    "ecr:CompleteLayerUpload",
    "ecr:PutImage",
)
JOB_ACTIONS = (
    "sagemaker:CreateTrainingJob",
    "sagemaker:DescribeTrainingJob",
    "sagemaker:StopTrainingJob",
    "sagemaker:ListTrainingJobs",
)
LOG_ACTIONS = ("logs:DescribeLogStreams", "logs:GetLogEvents")
OBJECT_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


def policy(target: Target) -> dict[str, Any]:
    """Return the policy document for the user that runs `ng_submit`."""
    partition = target.partition
    logs = f"arn:{partition}:logs:{target.region}:{target.account}:log-group:/aws/sagemaker/TrainingJobs"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["ecr:GetAuthorizationToken"], "Resource": "*"},
            {
                "Effect": "Allow",
                "Action": list(REPOSITORY_ACTIONS),
                "Resource": f"arn:{partition}:ecr:{target.region}:{target.account}:repository/{target.repository}",
            },
            {"Effect": "Allow", "Action": list(JOB_ACTIONS), "Resource": "*"},
            {
                "Effect": "Allow",
                "Action": ["iam:PassRole"],
                "Resource": target.role_arn or f"arn:{partition}:iam::{target.account}:role/*",
                "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:GetBucketLocation"],
                "Resource": f"arn:{partition}:s3:::{target.bucket}",
            },
            {
                "Effect": "Allow",
                "Action": list(OBJECT_ACTIONS),
                "Resource": f"arn:{partition}:s3:::{target.bucket}/{target.prefix}/*",
            },
            {"Effect": "Allow", "Action": list(LOG_ACTIONS), "Resource": [logs, f"{logs}:*"]},
        ],
    }
