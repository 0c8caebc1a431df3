"""JobLogs: new lines of a job's output, from CloudWatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollyard.records.io.aws import AwsError, aws_errors

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MAX_PAGES = 50
"""Maximum number of requests for one stream in one call, so that a fast writer cannot keep the caller busy."""


class JobLogs:
    """The log streams of one job, one for each host; each line is returned once."""

    def __init__(self, logs: Any, job: str) -> None:
        self._logs = logs
        self._job = job
        self._tokens: dict[str, str] = {}
        """Where to continue, by stream."""

    def new_lines(self) -> Iterator[str]:
        """Yield the lines that arrived since the last call. With several hosts, each starts with its host's name."""
        streams = self._streams()
        for stream in streams:
            host = stream.removeprefix(f"{self._job}/").rpartition("-")[0]
            for message in self._events(stream):
                yield f"[{host}] {message}" if len(streams) > 1 else message

    def _streams(self) -> list[str]:
        try:
            with aws_errors(f"the log of {self._job} cannot be read"):
                pages = self._logs.get_paginator("describe_log_streams").paginate(
                    logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self._job}/"
                )
                return sorted(stream["logStreamName"] for page in pages for stream in page["logStreams"])
        except AwsError as error:
            if error.code == "ResourceNotFoundException":  # no job of the account has written anything yet
                return []
            raise

    def _events(self, stream: str) -> Iterator[str]:
        for _ in range(MAX_PAGES):
            more = {"nextToken": self._tokens[stream]} if stream in self._tokens else {}
            with aws_errors(f"the log of {self._job} cannot be read"):
                page = self._logs.get_log_events(
                    logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **more
                )
            yield from (str(event["message"]) for event in page["events"])
            ended = self._tokens.get(stream) == page["nextForwardToken"]
            self._tokens[stream] = page["nextForwardToken"]
            if ended or not page["events"]:
                return
