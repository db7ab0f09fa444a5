"""Which server is this? Asks the few routes that servers answer about themselves; measures nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_adapters.transport import HttpClient

SGLANG_FLAGS = (
    "tp_size",
    "dp_size",
    "quantization",
    "kv_cache_dtype",
    "max_running_requests",
    "chunked_prefill_size",
    "disable_radix_cache",
    "speculative_algorithm",
    "mem_fraction_static",
    "attention_backend",
)
LM_STUDIO_OWNER = "organization_owner"


@dataclass(frozen=True)
class Facts:
    """What a server tells. `api` is the API to use when its own is wanted; what it does not tell is None or empty."""

    engine: str
    api: str
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    slots: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Engine and version as one text."""
        return f"{self.engine} {self.version}" if self.version else self.engine


async def data_at(client: HttpClient, *paths: str) -> dict[str, Any]:
    """The JSON object at the first of the paths that has one; empty when none has."""
    for path in paths:
        reply = await client.get(path)
        if reply.status == 200 and isinstance(reply.data, dict):
            return reply.data
    return {}


async def examine(client: HttpClient, entry: Mapping[str, Any]) -> Facts:
    """The server behind an OpenAI model list, by the owner that the list's entry names and by its own routes."""
    owner = str(entry.get("owned_by") or "unknown")
    facts = await EXAMINERS.get(owner, other_server)(client, owner)
    told = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    return facts if not told else _with_length(facts, told)


async def detect(client: HttpClient) -> Facts | None:
    """A server without an OpenAI model list, by the route that only its kind has; None when none answers."""
    for examiner in (ollama, tgi, triton, sglang, llama_cpp):
        facts = await examiner(client, "")
        if facts.engine:
            return facts
    return None


async def vllm(client: HttpClient, owner: str) -> Facts:
    """vLLM and what is built on it tell their version."""
    return Facts(owner, "openai-chat", (await data_at(client, "/version")).get("version"))


async def sglang(client: HttpClient, owner: str) -> Facts:
    """SGLang tells all its flags; those that shape a measurement are kept."""
    model_info = await data_at(client, "/get_model_info", "/model_info")
    info = model_info | await data_at(client, "/get_server_info", "/server_info")
    model = info.get("served_model_name") or info.get("model_path")
    flags = {name: info[name] for name in SGLANG_FLAGS if info.get(name) is not None}
    limit = info.get("max_running_requests")
    return Facts(
        "sglang" if "model_path" in info else owner,
        "sglang",
        info.get("version"),
        (str(model),) if model else (),
        _whole(info.get("context_length")),
        _whole(limit),
        flags,
    )


async def llama_cpp(client: HttpClient, owner: str) -> Facts:
    """llama.cpp tells its build, slots and the context of a slot."""
    props = await data_at(client, "/props")
    settings = props.get("default_generation_settings")
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
    model = props.get("model_alias") or props.get("model_path")
    return Facts(
        "llama.cpp" if owner or "default_generation_settings" in props else "",
        "llama-cpp",
        props.get("build_info"),
        (str(model),) if model else (),
        _whole(n_ctx),
        _whole(props.get("total_slots")),
    )


async def ollama(client: HttpClient, owner: str) -> Facts:
    """Ollama tells its version and its models."""
    version = (await data_at(client, "/api/version")).get("version")
    if not version:
        return Facts(owner, "ollama")
    listed = (await data_at(client, "/api/tags")).get("models")
    names = [str(model["name"]) for model in listed or () if isinstance(model, dict) and model.get("name")]
    return Facts("ollama", "ollama", version, tuple(names))


async def tgi(client: HttpClient, owner: str) -> Facts:
    """Text Generation Inference tells its model, version and limits."""
    info = await data_at(client, "/info")
    if "model_id" not in info:
        return Facts(owner, "tgi")
    return Facts(
        "tgi",
        "tgi",
        info.get("version"),
        (str(info["model_id"]),),
        _whole(info.get("max_total_tokens")),
        _whole(info.get("max_concurrent_requests")),
    )


async def triton(client: HttpClient, owner: str) -> Facts:
    """Triton tells its version; its models are those of the repository that are ready."""
    info = await data_at(client, "/v2")
    if info.get("name") != "triton":
        return Facts(owner, "triton")
    index = (await client.post("/v2/repository/index", {})).data
    ready = [m for m in index if isinstance(m, dict) and m.get("state") == "READY"] if isinstance(index, list) else []
    return Facts("triton", "triton", info.get("version"), tuple(str(model.get("name")) for model in ready))


async def lm_studio(client: HttpClient, owner: str) -> Facts:
    """LM Studio tells the loaded context beside the model's own."""
    listed = (await data_at(client, "/api/v0/models")).get("data")
    loaded = [m for m in listed or () if isinstance(m, dict) and m.get("state") == "loaded"]
    length = loaded[0].get("loaded_context_length") if loaded else None
    return Facts("lm-studio", "openai-chat", max_model_len=_whole(length))


async def other_server(client: HttpClient, owner: str) -> Facts:
    """A server of another owner: `/version` if it has it, else its `server` header."""
    reply = await client.get("/version")
    version = reply.data.get("version") if reply.status == 200 and isinstance(reply.data, dict) else None
    if version:
        return Facts(owner, "openai-chat", str(version))
    server = reply.headers.get("server", "")
    named = server and server != "uvicorn" and owner != server
    return Facts(f"{owner} ({server})" if named else owner, "openai-chat")


Examiner = Callable[[HttpClient, str], Awaitable[Facts]]
EXAMINERS: dict[str, Examiner] = {  # by the `owned_by` of the model list
    "vllm": vllm,
    "sglang": sglang,
    "llamacpp": llama_cpp,
    "library": ollama,
    "tensorrt_llm": vllm,
    LM_STUDIO_OWNER: lm_studio,
}
OWN_LISTS: dict[str, Examiner] = {"ollama": ollama, "tgi": tgi, "triton": triton}  # by API: no OpenAI model list


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_length(facts: Facts, told: Any) -> Facts:
    return Facts(facts.engine, facts.api, facts.version, facts.models, _whole(told), facts.slots, facts.flags)
