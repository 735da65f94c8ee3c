"""Facts about GPUs, as numbers for the planner. Asking may take a second and start the driver."""

import torch

from planner.facts import Gpu


def gpus() -> tuple[Gpu, ...]:
    """Every device torch can compute on, with what is free on it now. Raises: what torch raises on a broken driver."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        integrated = bool(getattr(properties, "is_integrated", False))
        found.append(Gpu(name=properties.name, total_bytes=total, free_bytes=free, unified=integrated))
    if torch.backends.mps.is_available():
        total = int(torch.mps.recommended_max_memory())
        found.append(Gpu(name="Apple GPU", total_bytes=total, free_bytes=total, unified=True))
    return tuple(found)
