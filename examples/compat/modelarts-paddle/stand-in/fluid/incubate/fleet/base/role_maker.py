"""For the tests only."""


class PaddleCloudRoleMaker:
    """Roles are in the environment, where today's fleet looks for them."""

    def __init__(self, is_collective=False):
        self.is_collective = is_collective
