"""What the operator gets to read: place, problem, way out, in one line."""


class OperatorError(Exception):
    """The set-up can't work as it is: said in one line, then the process ends with exit code 2.

    place     where: FILE:LINE:COL: key.path, a path, an endpoint
    problem   what is wrong there
    way_out   what to do about it
    """

    def __init__(self, place: str, problem: str, way_out: str) -> None:
        super().__init__(place, problem, way_out)
        self.place = place
        self.problem = problem
        self.way_out = way_out

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {self.way_out}"


class UnitBroken(Exception):
    """The contract between the actors of a restart unit is broken: both end and restart as one."""
