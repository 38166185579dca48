"""Types and images of cloud machines that scripts name."""

from __future__ import annotations

from typing import Any

#: GPUs of instance types that scripts name; where a machine has some, these count.
GPUS = {
    "ecs.gn6v-c8g1.2xlarge": 1,
    "ecs.gn6v-c8g1.8xlarge": 4,
    "ecs.gn6v-c8g1.16xlarge": 8,
    "ecs.gn6v-c10g1.20xlarge": 8,
    "ecs.gn6e-c12g1.3xlarge": 1,
    "ecs.gn6e-c12g1.12xlarge": 4,
    "ecs.gn6e-c12g1.24xlarge": 8,
    "ecs.gn6i-c4g1.xlarge": 1,
    "ecs.gn7-c13g1.13xlarge": 4,
    "ecs.gn7-c12g1.24xlarge": 8,
    "p2.xlarge": 1,
    "p2.8xlarge": 8,
    "p2.16xlarge": 16,
    "p3.2xlarge": 1,
    "p3.8xlarge": 4,
    "p3.16xlarge": 8,
    "p3dn.24xlarge": 8,
}

#: The same as scripts look it up: `INSTANCE_INFO[instance_type]["gpus"]`.
INSTANCE_INFO: dict[str, dict[str, Any]] = {name: {"gpus": count} for name, count in GPUS.items()}
#: The image and type of scripts that do not care. A host has the system that is installed on it.
GENERIC_SMALL_IMAGE = "amzn2-ami-hvm-2.0.20190612-x86_64-gp2"
GENERIC_SMALL_INSTANCE = "t3.micro"
