"""``StepMonitor``: what a PyTorch training loop talks to. Four lines, and every rank's step is taken apart.

Recording never waits, never synchronizes, and never raises: what fails is logged once and counted, and training goes on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from stepscope.collectives import Collectives, fsdp_groups, strategy_of
from stepscope.flops import ModelFlops, decoder_flops, dtype_name, find_peak, is_cuda, parameter_count
from stepscope.identity import Identity
from stepscope.memory import allocator_bytes, counted_bytes
from stepscope.metrics import Job, Peak
from stepscope.peers import Puller, file_sd
from stepscope.phases import ALLREDUCE, BACKWARD, DATA_WAIT, OTHER, PHASES
from stepscope.publisher import Errors, Publisher, Settings
from stepscope.rendezvous import StorePeers, announce, backend
from stepscope.timeline import EXIT, FLUSH, POP, POP_EXIT, PUSH, Clock, HostClock, Limits, Recorder, Resolver
from stepscope.totals import RankTotals
from stepscope.version import __version__

log = logging.getLogger("stepscope")

COUNTINGS = 8
"""Of what training holds in memory, until gradients and optimizer state were there."""
_CODES = {name: code for code, name in enumerate(PHASES)}


class StepMonitor:
    """Measures one rank's steps, and publishes them.

    ``model`` tells the device, the FLOPs and the memory; what it does not tell yet, because it is made or moved later, the
    model given to ``wrap`` does. ``tokens_per_step`` is per rank and optimizer step, in ``unit``. ``flops_per_step`` overrides
    the formula for decoder transformers, which holds for tokens, and needs ``sequence_length`` for the attention term.
    ``peak`` is the device's FLOP/s, or ``"measured"``; without it the datasheet's is taken, if the device is known.
    ``dtype`` is that of the matrix products; without it, that of autocast in the first forward of a wrapped model, of FSDP's
    mixed precision, or of the parameters.
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
        self._told = _Told(model_name, unit, sequence_length, flops_per_step, peak, dtype)
        self._device = _device_of(model)
        self._optimizer: Any = optimizer
        self._model: Any = model
        self._tokens = _amount("tokens_per_step", tokens_per_step)
        if gradient_band is not None and not gradient_band[0] <= gradient_band[1]:
            raise ValueError(f"gradient_band={gradient_band!r}: give the lowest norm, then the highest")
        self._flops: ModelFlops | None = None
        self._counted: dict[str, float] = {}
        self._uncounted = COUNTINGS if model is not None else 0
        self._collectives: Collectives | None = None
        self._impossible = False
        self._solo = identity.world_size == 1
        clock = clock or self._clock(self._device)
        self._recorder = Recorder(clock, lambda error: self.errors.add("monitor", error))
        exits = {ALLREDUCE, BACKWARD} if self._solo else {ALLREDUCE}
        self._scopes = {
            name: _PhaseScope(PUSH + code, POP_EXIT if code in exits else POP, self._recorder)
            for name, code in _CODES.items()
        }
        limits = Limits(clip_norm=clip_norm, band=gradient_band)
        totals = RankTotals(tokens=None)
        self._job = Job(
            totals=totals, memory_bytes=[{}], run_info=(), version=__version__, per_rank_histogram=per_rank_histogram
        )
        self._assess(model)
        if self._tokens:
            totals.tokens = 0.0
        if not (self._flops and (self._tokens or self._flops.per_step)):
            totals.flops = None
        self._first = identity.rank == 0  # the run's own figures are rank 0's
        self._keep = clock.keep
        resolver = Resolver(
            self._recorder,
            limits=limits,
            tokens=self._tokens,
            flops=lambda tokens: self._flops.of(tokens) if self._flops else 0.0,
            learning_rate=self._learning_rate if self._first else lambda: None,
            failed=lambda error: self.errors.add("loss", error),
        )
        self._publisher = Publisher(identity, settings, resolver, self._job, totals, self.errors)
        self._publisher.refresh = self._refresh
        self._publisher.hints = self._hints
        self._publisher.announce = lambda address: announce(identity, address)
        if identity.rank == 0 and settings.referee:
            discovered = file_sd(settings.sd_dir, identity.run) if settings.sd_dir else tuple
            peers = StorePeers(identity, self._publisher.own_address, discovered)
            self._publisher.puller = Puller(peers, run=identity.run)
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
        local_world_size: int | None = None,
        **options: Any,
    ) -> StepMonitor:
        """Rank, world and run from torchrun's or Slurm's variables, or from the arguments; further ``options`` as above.

        Where to publish, and under which names, comes from the variables ``STEPSCOPE_…`` (docs/real-training.md).
        """
        identity = Identity.from_env(
            run=run, rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local_world_size
        )
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

        With the optimizer, its learning rate and its memory are published as well. With ``torch.compile``, wrap what it
        returns. One model is watched at a time: the last one.
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
        learning_rate: Any = None,
        clipped: bool | None = None,
        tokens: Any = None,
        step: Any = None,
        local_gradient_norm: Any = None,
    ) -> None:
        """One optimizer step is done. It lasts until the next one begins, so that nothing between them is lost.

        Numbers may be tensors on the device: nobody waits for them. ``step`` must grow, on all ranks alike; without it, steps
        are counted from 0. ``local_gradient_norm`` is that of this rank's own gradient, before the reduction.
        """
        try:
            if self._first:
                loss, grad_norm = self._kept(loss), self._kept(grad_norm)
            else:
                loss = grad_norm = None
            step, tokens, learning_rate = self._kept(step), self._kept(tokens), self._kept(learning_rate)
            local_norm = self._kept(local_gradient_norm)
            self._recorder.done(step, tokens, loss, grad_norm, learning_rate, clipped, local_norm)
            if self._uncounted:
                self._uncounted -= 1
                self._count_memory()
        except Exception as error:
            self._recorder.fail(error)

    def flush(self) -> None:
        """End the last step here: the loop is over, and what follows belongs to no step."""
        self._recorder.mark(FLUSH)

    def close(self) -> None:
        """End the last step, and stop publishing. Also done at the interpreter's exit."""
        self.flush()
        self._publisher.close()
        self._recorder.close()
        if self._collectives:
            self._collectives.detach()

    def __enter__(self) -> StepMonitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What callbacks of other frameworks use -------------------------------------------------------------------------

    def enter(self, name: str) -> None:
        """From now on it is this phase, until another one is entered. For hooks that have no ``with`` block."""
        self._recorder.mark(_CODES[name])

    def leave_backward(self) -> None:
        """``backward()`` has returned: the gradient collectives are over."""
        self._recorder.mark(EXIT if self._solo else OTHER)

    # Inside ---------------------------------------------------------------------------------------------------------

    def _left_backward(self) -> None:
        if self._uncounted and "gradients" not in self._counted:
            self._count_memory()

    def _watch(self, model: Any, optimizer: Any) -> None:
        if self._collectives:
            self._collectives.detach()
            if model is not self._model:
                log.warning("wrap() was called with another model: the one before is not watched any more")
        self._model, self._optimizer = model, optimizer or self._optimizer
        self._counted, self._uncounted = {}, COUNTINGS
        self._move(_device_of(model))
        self._assess(model)
        strategy = strategy_of(model, self.identity.world_size)
        if strategy == "none" and self._solo:
            strategy = "single"
        exit_mark = EXIT if self._solo else OTHER
        self._collectives = Collectives(
            model,
            strategy,
            self._recorder,
            exit_mark,
            self._left_backward,
            self._saw_autocast,
            lambda error: self.errors.add("collectives", error),
        )
        self._describe(strategy)
        if any(type(module).__name__ == "SyncBatchNorm" for module in model.modules()):
            log.warning("SyncBatchNorm joins the ranks within forward and backward: who waits there seems to compute, so a slow "
                        "rank may stay unnamed")  # fmt: skip
        if strategy == "none":
            log.warning("wrap() got neither a DDP nor an fully_shard model: waiting in collectives cannot be told from "
                        "backward, and no culprit can be named")  # fmt: skip

    def _move(self, device: Any) -> None:
        """The model is on a GPU by now. From its first step on, a job is measured by one clock."""
        if self._on_cuda or not is_cuda(device):
            return
        if self._publisher.use(lambda: self._clock(device)):
            self._device, self._keep = device, self._recorder.clock.keep
        else:
            self.errors.add("monitor", "the model came to a GPU after the first step began: phases are the host's launches, "
                                       "not the device's work; call wrap(), or make the monitor, after .to(device)")  # fmt: skip

    def _assess(self, model: Any, autocast: Any = None) -> None:
        """Both sides of MFU, and what the run says of itself, by the model as it is now."""
        told = self._told
        dtype = told.dtype or autocast or _dtype_of(model)
        name = dtype_name(dtype, self._device)
        if self._flops is None:
            self._flops = told.flops(model)
        if self._job.peak is None or self._job.peak.dtype != name:
            self._job.peak = self._peak(told.peak, dtype)
        parameters = parameter_count(model) if model is not None else None
        self._job.run_info = (
            told.name or _name_of(model),
            "unknown" if parameters is None else str(parameters),
            name,
            str(self.identity.world_size),
            f"{self._tokens:.0f}",
            told.unit,
            self._flops.convention if self._flops else "unknown",
        )

    def _saw_autocast(self, dtype: Any) -> None:
        """In the first forward, and in the loop: nothing is measured there."""
        if dtype is None or self._told.dtype:
            return
        if self._told.peak == "measured":
            log.warning("the peak was measured for %s, and autocast multiplies in %s: give dtype=%s to the monitor",
                        self._job.run_info[2], dtype_name(dtype), dtype)  # fmt: skip
        else:
            self._assess(self._model, dtype)

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
        return is_cuda(self._device)

    def _clock(self, device: Any) -> Clock:
        if not is_cuda(device):
            return HostClock()
        import torch

        from stepscope.cuda import CudaClock

        return CudaClock(torch, device)

    def _device_name(self) -> str:
        if not self._on_cuda:
            return "cpu"
        import torch

        return str(torch.cuda.get_device_name(self._device))

    def _kept(self, value: Any) -> Any:
        if value is None or type(value) is float:
            return value
        try:
            return self._keep(value)
        except Exception as error:  # it is no single number
            self.errors.add("loss", error)
            return None

    def _learning_rate(self) -> float | None:
        return None if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    def _count_memory(self) -> None:
        """In the loop, until gradients and optimizer state were there once; what training holds does not change."""
        try:
            self._counted |= counted_bytes(self._model, self._optimizer)
            wanted = {"gradients", "optimizer"} if self._optimizer is not None else {"gradients"}
            if wanted <= self._counted.keys():
                self._uncounted = 0
        except Exception as error:
            self.errors.add("memory", error)
            self._uncounted = 0

    def _refresh(self) -> None:
        """Before each scrape."""
        rate, peak = self._job.totals.flops_per_second(), self._job.peak
        if rate and peak and rate[0] > peak.flops and not self._impossible:
            self._impossible = True
            log.warning("MFU is above 1: %.3g FLOP/s of a peak of %.3g (%s, %s). Are dtype, peak, tokens_per_step and the FLOPs "
                        "those of one rank's step?", rate[0], peak.flops, peak.dtype, peak.source)  # fmt: skip
        found = dict(self._counted)
        if self._on_cuda:
            import torch

            found |= allocator_bytes(torch, self._device)
        self._job.memory_bytes = [found]

    def _hints(self) -> Iterator[str]:
        """What a loop forgot, once it is known."""
        if not self._on_cuda and _cuda_is_used():
            yield ("a GPU is used, and the monitor measures the host alone: make it after model.to(device), with model=, or "
                   "call wrap() before the first step")  # fmt: skip
        if self._job.totals.tokens is None:
            yield "no tokens are reported: give tokens_per_step, or tokens= to step_done"

    def _peak(self, wanted: float | str | None, dtype: Any) -> Peak | None:
        try:
            return find_peak(wanted, self._device_name(), self._device, dtype)
        except ValueError:
            raise
        except Exception as error:  # no matrix product of that dtype, for example
            log.warning("no measured peak: %s", error)
            return None

    def _say_what_is_missing(self) -> None:
        if self.identity.rank:
            return
        if self._flops is None and self._model is None:
            log.warning("MFU is absent until wrap() tells the model: else give it, or flops_per_step and peak")
        elif self._flops is None:
            log.warning("MFU is absent: no formula for this model's FLOPs. Give flops_per_step, for example from "
                        "stepscope.flops.counted_flops(model, inputs).")  # fmt: skip
        elif self._job.peak is None:
            log.warning("MFU is absent: no datasheet figure for %r at this dtype. Give peak in FLOP/s, or "
                        "peak='measured'.", self._device_name())  # fmt: skip


class _PhaseScope:
    """One phase's ``with`` block; made once per phase, so that entering allocates nothing but its mark."""

    __slots__ = ("_pop", "_push", "_recorder")

    def __init__(self, push: int, pop: int, recorder: Recorder) -> None:
        self._push, self._pop, self._recorder = push, pop, recorder

    def __enter__(self) -> None:  # as Recorder.mark, without the call
        recorder = self._recorder
        try:
            recorder.append((self._push, recorder.stamp()))
        except Exception as error:
            recorder.lost(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        try:
            recorder.append((self._pop, recorder.stamp()))
        except Exception as failure:
            recorder.lost(failure)


class Batches:
    """A loader's batches, timed; as long as the loader."""

    def __init__(self, loader: Iterable[Any], monitor: StepMonitor) -> None:
        self._loader, self._monitor = loader, monitor

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # what has no length says so itself

    def __iter__(self) -> Iterator[Any]:
        enter = self._monitor._recorder.mark
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


def _amount(name: str, value: Any) -> float:
    try:
        amount = float(value)
    except (TypeError, ValueError):
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ValueError(f"{name}={value!r}: give a number that is not negative")
    return amount


class _Told(NamedTuple):
    """What the user said of the model, where the model need not be asked."""

    name: str | None
    unit: str
    sequence_length: int | None
    flops_per_step: float | None
    peak: float | str | None
    dtype: Any

    def flops(self, model: Any) -> ModelFlops | None:
        if self.flops_per_step is not None:
            return ModelFlops(per_step=float(self.flops_per_step), convention="configured")
        return decoder_flops(model, self.sequence_length) if model is not None and self.unit == "tokens" else None


def _name_of(model: Any) -> str:
    if model is None:
        return "unknown"
    name = type(getattr(model, "module", model)).__name__
    return name.removeprefix("FSDP") if hasattr(model, "_get_fsdp_state") else name  # it makes the model another class


def _dtype_of(model: Any) -> Any:
    """FSDP2 multiplies in its own dtype, and keeps the parameters in another."""
    if model is None:
        return None
    own = next((parameter.dtype for parameter in model.parameters()), None)
    policies = (getattr(group, "mp_policy", None) for group in fsdp_groups(model))
    return next((policy.param_dtype for policy in policies if policy and policy.param_dtype), own)


def _device_of(model: Any) -> Any:
    """Without a model, the GPU that this process has begun to use."""
    if model is not None:
        return next((parameter.device for parameter in model.parameters()), None)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def _cuda_is_used() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_allocated() > 0


def _uuid(device: Any) -> str:
    import torch

    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
