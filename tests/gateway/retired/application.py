"""An application of the retired personaliser in Python; the endpoint and the key are all that changed."""

import os

from azure.ai.personalizer import PersonalizerClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError

ACTIONS = [{"id": name, "features": [{"type": name}]} for name in ("news", "sports", "films")]
CONTEXT = [{"User": {"id": "bob", "country": "de", "age": 44}}, {"weather": "sun"}]


def refused(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return error.status_code, error.error.code if error.error else error.model
    raise AssertionError("it was not refused")


endpoint = os.environ["HUSHSTREAM_GATEWAY"]
client = PersonalizerClient(endpoint, AzureKeyCredential(os.environ["KEY"]))

found = client.rank(
    {"contextFeatures": CONTEXT, "actions": ACTIONS, "excludedActions": ["news"], "eventId": "python-1"}
)
assert found["eventId"] == "python-1"
assert found["rewardActionId"] in ("sports", "films")
assert found["ranking"][0]["id"] == "news"
client.reward("python-1", {"value": 0.5})

client.rank({"contextFeatures": CONTEXT, "actions": ACTIONS, "eventId": "python-2", "deferActivation": True})
client.activate("python-2")
client.reward("python-2", {"value": 1.0})

slots = [
    {"id": "top", "baselineAction": "news", "features": [{"size": "large"}]},
    {"id": "side", "baselineAction": "sports", "excludedActions": ["films"]},
]
page = client.rank_multi_slot(
    {"contextFeatures": CONTEXT, "actions": ACTIONS, "slots": slots, "eventId": "python-3", "deferActivation": True}
)
assert page["eventId"] == "python-3"
chosen = {slot["id"]: slot["rewardActionId"] for slot in page["slots"]}
assert list(chosen) == ["top", "side"]
assert len(set(chosen.values())) == 2
assert chosen["side"] != "films"
client.activate_multi_slot("python-3")
client.reward_multi_slot("python-3", {"reward": [{"slotId": "side", "value": 1.0}]})

status, code = refused(ResourceNotFoundError, client.reward, "nobody", {"value": 1.0})
assert (status, code) == (404, "ResourceNotFound")
status, code = refused(HttpResponseError, client.rank, {"actions": [{"id": "cars", "features": [{}]}]})
assert (status, code) == (400, "BadRequest")
stranger = PersonalizerClient(endpoint, AzureKeyCredential("x" * 32))
assert refused(ClientAuthenticationError, stranger.rank, {"actions": ACTIONS})[0] == 401
