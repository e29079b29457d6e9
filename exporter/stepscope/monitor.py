"""``StepMonitor``: what a PyTorch training loop talks to. Four lines, and every rank's step is taken apart.

Recording never waits, never synchronizes, and never raises: what fails is logged once and counted, and training goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from stepscope.flops import ModelFlops, decoder_flops, dtype_name, find_peak, parameter_count
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
        self._counted: dict[str, float] = {}
        self._uncounted = COUNTINGS if model is not None else 0
        self._collectives: Any = None
        self._solo = identity.world_size == 1
        clock = clock or self._clock()
        self._recorder = Recorder(clock, lambda error: self.errors.add("monitor", error))
        exits = {ALLREDUCE, BACKWARD} if self._solo else {ALLREDUCE}
        self._scopes = {
            name: _PhaseScope(PUSH + code, POP_EXIT if code in exits else POP, self._recorder)
            for name, code in _CODES.items()
        }
        limits = Limits(clip_norm=clip_norm, band=gradient_band)
        dtype = dtype or _dtype_of(model)
        totals = RankTotals()
        self._job = Job(
            totals=totals,
            memory_bytes=[{}],
            run_info=(
                model_name or _name_of(model),
                str(parameter_count(model)) if model is not None else "unknown",
                dtype_name(dtype),
                str(identity.world_size),
                f"{self._tokens:.0f}",
                unit,
                self._flops.convention if self._flops else "unknown",
            ),
            peak=self._peak(peak, dtype),
            version=__version__,
            per_rank_histogram=per_rank_histogram,
        )
        self._first = identity.rank == 0  # the run's own figures are rank 0's
        self._keep = clock.keep
        resolver = Resolver(
            self._recorder,
            limits=limits,
            tokens=self._tokens,
            flops=self._flops.of if self._flops else lambda tokens: 0.0,
            learning_rate=self._learning_rate if self._first else lambda: None,
            failed=lambda error: self.errors.add("loss", error),
        )
        self._publisher = Publisher(identity, settings, resolver, self._job, totals, self.errors)
        self._publisher.refresh = self._read_memory
        self._publisher.announce = lambda address: announce(identity, address)
        if identity.rank == 0 and settings.referee:
            discovered = file_sd(settings.sd_dir, identity.run) if settings.sd_dir else tuple
            self._publisher.puller = Puller(StorePeers(identity, self._publisher.public_address, discovered))
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
        learning_rate: float | None = None,
        clipped: bool | None = None,
        tokens: float | None = None,
        step: int | None = None,
        local_gradient_norm: Any = None,
    ) -> None:
        """One optimizer step is done. It lasts until the next one begins, so that nothing between them is lost.

        ``loss`` and ``grad_norm`` may be tensors on the device: nobody waits for them. ``step`` must grow; without it,
        steps are counted from 0. ``local_gradient_norm`` is that of this rank's own gradient, before the reduction; it may
        be a tensor, too.
        """
        try:
            if self._first:
                loss, grad_norm = self._kept(loss), self._kept(grad_norm)
            else:
                loss = grad_norm = None
            local_norm = self._kept(local_gradient_norm)
            self._recorder.done(step, tokens, loss, grad_norm, learning_rate, clipped, local_norm)
            if self._uncounted:
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
        if self._uncounted:
            self._count_memory()

    def _watch(self, model: Any, optimizer: Any) -> None:
        from stepscope.collectives import Collectives, strategy_of

        if self._collectives:
            self._collectives.detach()
            if model is not self._model:
                log.warning("wrap() was called with another model: the one before is not watched any more")
        self._model, self._optimizer = model, optimizer or self._optimizer
        self._counted, self._uncounted = {}, COUNTINGS
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
            lambda error: self.errors.add("collectives", error),
        )
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
            self._uncounted = 0 if wanted <= self._counted.keys() else self._uncounted - 1
        except Exception as error:
            self.errors.add("memory", error)
            self._uncounted = 0

    def _read_memory(self) -> None:
        found = dict(self._counted)
        if self._on_cuda:
            import torch

            found |= allocator_bytes(torch, self._device)
        self._job.memory_bytes = [found]

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
            log.warning("MFU is absent: give the model, or flops_per_step and peak")
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


def _name_of(model: Any) -> str:
    return "unknown" if model is None else type(getattr(model, "module", model)).__name__


def _dtype_of(model: Any) -> Any:
    return next((parameter.dtype for parameter in model.parameters()), None) if model is not None else None


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
