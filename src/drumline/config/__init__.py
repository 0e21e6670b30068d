"""The config of a run: plain data, checked whole before anything starts. Needs no torch."""

from drumline.config.environment import ClusterEnvironment
from drumline.config.load import load_config, parse_config
from drumline.config.modes import DDPConfig, MeshConfig, MeshShape, PipelineConfig, ShardedConfig
from drumline.config.performance import PerformanceConfig
from drumline.config.run import (
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    KeepBest,
    LoggingConfig,
    Mode,
    OptimizerConfig,
    Precision,
    RunConfig,
    ScheduleConfig,
)
from drumline.config.section import Section, TaskConfig
from drumline.config.stability import StabilityConfig

__all__ = [
    "CheckpointConfig",
    "ClusterEnvironment",
    "DDPConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "KeepBest",
    "LoggingConfig",
    "MeshConfig",
    "MeshShape",
    "Mode",
    "OptimizerConfig",
    "PerformanceConfig",
    "PipelineConfig",
    "Precision",
    "RunConfig",
    "ScheduleConfig",
    "Section",
    "ShardedConfig",
    "StabilityConfig",
    "TaskConfig",
    "load_config",
    "parse_config",
]
