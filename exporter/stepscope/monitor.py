"""``StepMonitor``: what a PyTorch training loop talks to. Four lines, and every rank's step is taken apart.

Recording never waits, never synchronizes, and never raises: what fails is logged once and counted, and training goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from stepscope.flops import DTYPES, ModelFlops, decoder_flops, find_peak, parameter_count
from stepscope.identity import Identity
from stepscope.memory import allocator_bytes, counted_bytes
from stepscope.metrics import Job
from stepscope.peers import Puller, file_sd
from stepscope.phases import ALLREDUCE, BACKWARD, DATA_WAIT, OTHER, PHASES
from stepscope.publisher import Errors, Publisher, Settings
from stepscope.rendezvous import Peers, announce, backend
from stepscope.timeline import EXIT, Clock, Done, HostClock, Limits, Recorder, Resolver
from stepscope.totals import RankTotals
from stepscope.version import __version__

log = logging.getLogger("stepscope")


class StepMonitor:
    """Measures one rank's steps, and publishes them.

    ``model`` tells the FLOPs and memory; ``tokens_per_step`` is per rank and optimizer step, in ``unit``.
    ``flops_per_step`` overrides the formula for decoder transformers, which needs ``sequence_length`` for the attention
    term. ``peak`` is the device's FLOP/s, or ``"measured"``; without it the datasheet's is taken, if the device is known.
    ``dtype`` is that of the matrix products (``torch.bfloat16`` under autocast); without it, that of the parameters.
    ``clip_norm`` and ``gradient_band`` (lowest and highest expected norm) are what ``grad_norm`` is counted against.

    Raises ``ValueError`` for arguments that cannot be meant; from then on nothing.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        *,
        model: Any = None,
        model_name: str | None = None,
        optimizer: Any = None,
        tokens_per_step: float = 0.0,
        unit: str = "tokens",
        sequence_length: int | None = None,
        flops_per_step: float | None = None,
        peak: float | str | None = None,
        dtype: Any = None,
        clip_norm: float | None = None,
        gradient_band: tuple[float, float] | None = None,
        per_rank_histogram: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.identity = identity
        self.errors = Errors()
        self._device = _device_of(model)
        self._optimizer: Any = optimizer
        self._model: Any = model
        self._tokens = float(tokens_per_step)
        self._flops = _model_flops(model, sequence_length, flops_per_step)
        self._step = -1
        self._alive = True
        self._counted: dict[str, float] = {}
        self._stack: list[int] = []
        self._collectives: Any = None
        self._solo = identity.world_size == 1
        self._scopes = {name: _PhaseScope(self, code) for code, name in enumerate(PHASES)}
        clock = clock or self._clock()
        self._recorder = Recorder(clock)
        limits = Limits(clip_norm=clip_norm, band=gradient_band)
        dtype = dtype or (next(iter(model.parameters())).dtype if model is not None else None)
        self._job = Job(
            totals=RankTotals(),
            memory_bytes=[{}],
            run_info=(
                model_name or type(getattr(model, "module", model)).__name__ if model is not None else model_name or "unknown",
                str(parameter_count(model)) if model is not None else "unknown",
                DTYPES.get(str(dtype), str(dtype)), str(identity.world_size), f"{self._tokens:.0f}", unit,
                self._flops.convention if self._flops else "unknown",
            ),
            peak=find_peak(peak, self._device_name(), self._device, dtype) if model is not None or peak else None,
            version=__version__,
            per_rank_histogram=per_rank_histogram,
        )  # fmt: skip
        resolver = Resolver(clock=clock, attempt=identity.attempt, limits=limits)
        self._publisher = Publisher(identity, settings, self._recorder, resolver, self._job, self.errors)
        self._publisher.refresh = self._read_memory
        self._publisher.announce = lambda address: announce(identity, address)
        if identity.rank == 0 and settings.referee:
            discovered = file_sd(settings.sd_dir, identity.run) if settings.sd_dir else tuple
            self._publisher.puller = Puller(Peers(identity, self._publisher.public_address, discovered))
            self._publisher.puller.start()
        self._describe("single" if self._solo else "none")
        self._say_what_is_missing()
        self._publisher.start()

    @classmethod
    def from_env(
        cls,
        *,
        run: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        **options: Any,
    ) -> StepMonitor:
        """Rank, world and run from torchrun's or Slurm's variables, or from the arguments; further ``options`` as above.

        Where to publish comes from ``STEPSCOPE_METRICS_PORT``, ``STEPSCOPE_METRICS_ADDRESS``, ``STEPSCOPE_SD_DIR`` and
        ``STEPSCOPE_REFEREE``.
        """
        identity = Identity.from_env(run=run, rank=rank, world_size=world_size, local_rank=local_rank)
        return cls(identity, Settings.from_env(identity), **options)

    # In the training loop -------------------------------------------------------------------------------------------

    def batches(self, loader: Iterable[Any]) -> Batches:
        """The loader's batches. Waiting for one is ``data_wait``; the step begins there."""
        return Batches(loader, self)

    def phase(self, name: str) -> _PhaseScope:
        """A ``with`` block whose time is this phase's. Blocks may be nested: the inner one counts.

        Raises ``ValueError`` for a name that is no phase.
        """
        try:
            return self._scopes[name]
        except KeyError:
            raise ValueError(f"no phase {name!r}; there are {', '.join(PHASES)}") from None

    def wrap(self, model: Any, optimizer: Any = None) -> Any:
        """Watch the gradient collectives of a DDP or FSDP2 (``fully_shard``) model; returns the model.

        With the optimizer, its learning rate and its memory are published as well.
        """
        try:
            self._watch(model, optimizer)
        except Exception as error:
            self.errors.add("monitor", error)
        return model

    def step_done(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: float | None = None,
        clipped: bool | None = None,
        tokens: float | None = None,
        step: int | None = None,
    ) -> None:
        """One optimizer step is done. It lasts until the next one begins, so that nothing between them is lost.

        ``loss`` and ``grad_norm`` may be tensors on the device: nobody waits for them. ``step`` must grow; without it,
        steps are counted from 0.
        """
        if not self._alive:
            return
        try:
            self._step = step if step is not None and step > self._step else self._step + 1
            tokens = self._tokens if tokens is None else tokens
            flops = self._flops.of(tokens) if self._flops else 0.0
            first = self.identity.rank == 0  # the run's figures are rank 0's
            keep = self._keep if first else _nothing
            self._recorder.done(
                Done(
                    step=self._step, tokens=tokens, flops=flops, loss=keep(loss), gradient_norm=keep(grad_norm),
                    learning_rate=self._learning_rate(learning_rate) if first else None, clipped=clipped,
                )
            )  # fmt: skip
            if "optimizer" not in self._counted and self._optimizer is not None:
                self._count_memory()
        except Exception as error:
            self._fail(error)

    def flush(self) -> None:
        """End the last step here: the loop is over, and what follows belongs to no step."""
        try:
            self._recorder.flush()
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """End the last step, and stop publishing. Also done at the interpreter's exit."""
        self.flush()
        self._publisher.close()
        if self._collectives:
            self._collectives.detach()

    def __enter__(self) -> StepMonitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What callbacks of other frameworks use -------------------------------------------------------------------------

    def enter(self, name: str) -> None:
        """From now on it is this phase, until another one is entered. For hooks that have no ``with`` block."""
        self._enter(PHASES.index(name))

    def leave_backward(self) -> None:
        """``backward()`` has returned: the gradient collectives are over."""
        self._left_backward()
        self._enter(EXIT if self._solo else OTHER)

    # Inside ---------------------------------------------------------------------------------------------------------

    def _enter(self, code: int) -> None:
        if not self._alive:
            return
        try:
            self._recorder.enter(code)
        except Exception as error:
            self._fail(error)

    def _push(self, code: int) -> None:
        self._stack.append(OTHER if self._recorder.phase == EXIT else self._recorder.phase)
        self._enter(code)

    def _pop(self, code: int) -> None:
        outer = self._stack.pop()
        if code == BACKWARD:
            self._left_backward()
        leaves_collective = code == ALLREDUCE or (code == BACKWARD and self._solo)
        self._enter(EXIT if leaves_collective else outer)

    def _left_backward(self) -> None:
        if "gradients" not in self._counted and self._model is not None and self._alive:
            self._count_memory()

    def _fail(self, error: Exception) -> None:
        """The monitor is broken: it stops measuring, and the loop goes on."""
        self._alive = False
        self.errors.add("monitor", error)

    def _watch(self, model: Any, optimizer: Any) -> None:
        from stepscope.collectives import Collectives, strategy_of

        if self._collectives:
            self._collectives.detach()
        self._model, self._optimizer = model, optimizer or self._optimizer
        strategy = strategy_of(model)
        if strategy == "none" and self._solo:
            strategy = "single"
        self._collectives = Collectives(model, self._recorder, self._left_backward)
        self._describe(strategy)
        if strategy == "none":
            log.warning("wrap() got neither a DDP nor an fully_shard model: waiting in collectives cannot be told from "
                        "backward, and no culprit can be named")  # fmt: skip

    def _describe(self, strategy: str) -> None:
        info = {
            "local_rank": str(self.identity.local_rank),
            "gpu": str(self._device.index or 0) if self._on_cuda else "",
            "UUID": _uuid(self._device) if self._on_cuda else "",
            "device_name": self._device_name(),
            "backend": backend(),
            "strategy": strategy,
        }
        self._publisher.describe(info, self._device_collectors(info["UUID"]))

    def _device_collectors(self, uuid: str) -> list[Any]:
        """The rank's own GPU through NVML, where the binding is installed."""
        if not self._on_cuda:
            return []
        from stepscope.device import NvmlDevices, NvmlUnavailable, load_nvml

        try:
            return [NvmlDevices(load_nvml(), hostname=self.identity.node, only={uuid})]
        except NvmlUnavailable as error:
            log.info("no GPU metrics of our own: %s", error)
            return []

    @property
    def _on_cuda(self) -> bool:
        return getattr(self._device, "type", "cpu") == "cuda"

    def _clock(self) -> Clock:
        if not self._on_cuda:
            return HostClock()
        import torch

        from stepscope.cuda import CudaClock

        return CudaClock(torch, self._device)

    def _device_name(self) -> str:
        if not self._on_cuda:
            return "cpu"
        import torch

        return str(torch.cuda.get_device_name(self._device))

    def _keep(self, value: Any) -> Any:
        return self._recorder.clock.keep(value)

    def _learning_rate(self, given: float | None) -> float | None:
        if given is None and self._optimizer is not None:
            return float(self._optimizer.param_groups[0]["lr"])
        return given

    def _count_memory(self) -> None:
        """Once, in the loop, when gradients and optimizer state are there; what training holds does not change."""
        try:
            self._counted |= counted_bytes(self._model, self._optimizer)
        except Exception as error:
            self.errors.add("memory", error)
            self._counted |= {"gradients": 0.0, "optimizer": 0.0}

    def _read_memory(self) -> None:
        found = {kind: size for kind, size in self._counted.items() if size}
        if self._on_cuda:
            import torch

            found |= allocator_bytes(torch, self._device)
        self._job.memory_bytes = [found]

    def _say_what_is_missing(self) -> None:
        if self.identity.rank:
            return
        if self._flops is None:
            log.warning("MFU is absent: no formula for this model's FLOPs. Give flops_per_step, for example from "
                        "stepscope.flops.counted_flops(model, inputs).")  # fmt: skip
        elif self._job.peak is None:
            log.warning("MFU is absent: no datasheet figure for %r at this dtype. Give peak in FLOP/s, or "
                        "peak='measured'.", self._device_name())  # fmt: skip


class _PhaseScope:
    """One phase's ``with`` block; made once per phase, so that entering allocates nothing."""

    __slots__ = ("_code", "_monitor")

    def __init__(self, monitor: StepMonitor, code: int) -> None:
        self._monitor, self._code = monitor, code

    def __enter__(self) -> None:
        self._monitor._push(self._code)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._monitor._pop(self._code)


class Batches:
    """A loader's batches, timed; as long as the loader."""

    def __init__(self, loader: Iterable[Any], monitor: StepMonitor) -> None:
        self._loader, self._monitor = loader, monitor

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # what has no length says so itself

    def __iter__(self) -> Iterator[Any]:
        enter = self._monitor._enter
        enter(DATA_WAIT)  # making the iterator starts the workers
        iterator = iter(self._loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                enter(OTHER)
                return
            enter(OTHER)
            yield batch
            enter(DATA_WAIT)


def _nothing(value: Any) -> None:
    return None


def _device_of(model: Any) -> Any:
    return next((parameter.device for parameter in model.parameters()), None) if model is not None else None


def _model_flops(model: Any, sequence_length: int | None, flops_per_step: float | None) -> ModelFlops | None:
    if flops_per_step is not None:
        return ModelFlops(per_step=float(flops_per_step), convention="configured")
    return decoder_flops(model, sequence_length) if model is not None else None


def _uuid(device: Any) -> str:
    import torch

    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
