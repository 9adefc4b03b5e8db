from sardonyx.config import Settings
from sardonyx.reachable import reach_kafka, reach_zookeeper


def test_services_answer(settings: Settings) -> None:
    """The services that the tests get are real ones, and answer."""
    assert reach_zookeeper(settings).startswith("3.")
    assert reach_kafka(settings) >= 1
