"""The error for an operator. It is one line: place, problem, way out."""


class OperatorError(Exception):
    """The setup cannot work. The process prints one line and ends with exit code 2.

    place     FILE:LINE:COL: key.path, a path, or an endpoint
    problem   what is wrong there
    way_out   what the operator can do
    """

    def __init__(self, place: str, problem: str, way_out: str) -> None:
        super().__init__(place, problem, way_out)
        self.place = place
        self.problem = problem
        self.way_out = way_out

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {self.way_out}"
