"""Questions to the measures of many samples: statistics over a stream, and the samples that count most."""

from nrm.jobs.stream import Stream, stream

__all__ = ["Stream", "stream"]
