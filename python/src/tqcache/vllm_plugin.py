"""Entry point `vllm.general_plugins`: makes the tier "tqcache" known to vLLM (tqcache.vllm)."""


def register() -> None:
    """Called by vLLM in each of its processes, possibly more than once."""
    import logging

    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    except ImportError:
        logging.getLogger("tqcache.vllm").warning(
            "this vLLM has no secondary tiers for the offloading connector: tqcache is not used")
        return
    if "tqcache" not in SecondaryTierFactory._registry:
        SecondaryTierFactory.register_tier("tqcache", "tqcache.vllm", "TqcacheTier")
