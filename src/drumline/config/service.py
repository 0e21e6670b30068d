"""Settings of the service: environment variables that begin with DRUMLINE_, each with a default
under which one process on one machine needs nothing beside it.

Not part of `drumline.config`'s names: it needs the `service` extra, which trainings do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from drumline.errors import ConfigError, ConfigProblem

PREFIX = "DRUMLINE_"
DAY_S = 86_400
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServiceSettings(BaseSettings):
    """What `drumline serve` and `drumline agent` are told.

    Lists are separated by commas. A value that cannot be used is refused with its name.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    home: Path = Field(Path("~/.drumline"), description="folder of the database and small files")
    database_url: str = Field("", description="SQLite in `home` unless set; postgresql+psycopg://…")
    broker_url: str = Field("memory://", description="in this process, or redis://…")
    host: str = Field("127.0.0.1", description="address to listen on; others need a token")
    port: int = Field(8470, ge=0, le=65_535, description="port to listen on; 0: the system chooses")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="names besides the bind address under which browsers reach the service"
    )
    run_root: Path = Field(Path("runs"), description="folder under which run directories are made")
    script_roots: Annotated[tuple[Path, ...], NoDecode] = Field(
        (), description="folders whose scripts and data a config may name"
    )
    passed_environment: Annotated[tuple[str, ...], NoDecode] = Field(
        ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "HF_HOME", "NCCL_SOCKET_IFNAME", "TMPDIR"),
        description="names of environment variables that trainings get",
    )
    sample_every_s: float = Field(1.0, gt=0, description="period of reading the sensors")
    raw_days: float = Field(2, gt=0, description="how long single readings are kept")
    minute_days: float = Field(30, gt=0, description="how long rollups of 10 s and 1 min are kept")
    quarter_days: float = Field(365, gt=0, description="how long rollups of 15 min are kept")
    lease_s: float = Field(30, gt=0, description="a lease without heartbeat expires after this")
    heartbeat_s: float = Field(5, gt=0, description="period of a lease's heartbeat")
    stop_grace_s: float = Field(
        600, gt=0, description="how long a training may take to save and stop before it is killed"
    )
    poll_s: float = Field(2, gt=0, description="how often an agent looks for trainings to start")
    alert_webhook: str = Field("", description="URL that alerts are posted to")
    alert_email: str = Field("", description="address that alerts are sent to")
    smtp_url: str = Field("", description="smtp://user:password@host:port for alerts by e-mail")
    token: SecretStr = Field(SecretStr(""), description="token of an agent, or of a client")
    simulate: str = Field("", description="simulated devices, labelled so; see docs/hardware.md")

    @field_validator("allowed_hosts", "script_roots", "passed_environment", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("home", "run_root")
    @classmethod
    def _whole(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def database(self) -> str:
        """The database's URL: the one set, or SQLite in `home`."""
        return self.database_url or f"sqlite:///{self.home / 'drumline.db'}"

    @property
    def loopback_only(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK


def read_settings(**given: Any) -> ServiceSettings:
    """The settings of this process's environment, with those `given` on top.

    Raises:
        ConfigError: With the name of each variable whose value cannot be used. Values are not
            told: some are secrets.
    """
    try:
        return ServiceSettings(**given)
    except ValidationError as error:
        problems = [
            ConfigProblem(
                PREFIX + str(item["loc"][0]).upper() if item["loc"] else PREFIX,
                None,
                item["msg"][:1].lower() + item["msg"][1:],
                "See docs/service.md.",
            )
            for item in error.errors()
        ]
        raise ConfigError("The environment", problems) from None
