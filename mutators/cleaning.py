"""Takes one query out of what a model sent when it was asked for a rewrite alone.

Small models wrap a rewrite in courtesies, labels, quotes, markdown, tags, lists and explanations. Each function
here takes one such wrapping off, and does nothing to a plain query.
"""

from __future__ import annotations
