"""A clock for tests of what is said of the last seconds."""


class Clock:
    """Stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
