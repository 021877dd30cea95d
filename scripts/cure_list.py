"""What ``cures.py`` takes out of graphreplay, one cure at a time, and the tests that must fail without it.

An edit names a file of the package, a text that stands in it as often as said, and what stands there without the cure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One place of a cure. ``count`` is how often ``old`` stands in ``file``; all of them are replaced."""

    file: str
    old: str
    new: str
    count: int = 1


@dataclass(frozen=True)
class Cure:
    """One cure: its name, the public report or the known trap it answers, its places, and the tests that need it.

    Each of ``gpu`` and ``cpu`` is a node id below ``tests/library``, or the beginning of several ids up to their ``[``;
    of each at least one case must fail. ``since`` is the first torch, as (major, minor), that has the fault: under an
    older one nothing fails without the cure.
    """

    name: str
    report: str
    edits: tuple[Edit, ...]
    gpu: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    since: tuple[int, int] = (0, 0)


FREEZING, SETUP = "test_replay_freezing.py", "test_replay_setup.py"
REUSE, CAP, ERRORS = "test_replay_reuse.py", "test_replay_cap.py", "test_replay_errors.py"
ATTACH = "test_replay_attach.py"
TRAPS, REPORTS, CHANGES = "test_replay_traps.py", "test_replay_reports.py", "test_replay_changes.py"
MEMORY, NETWORKS = "test_replay_memory.py", "test_replay_networks.py"
HOOKS, FITS, GUARD = "test_replay_hooks.py", "test_replay_fits.py", "test_replay_guard.py"
BACKWARDS, STRUCTURES = "test_replay_backwards.py", "test_replay_structures.py"
LAYOUTS, BITS, MUSGD, FALLBACK = (
    "test_replay_layouts.py",
    "test_replay_bits.py",
    "test_padded_musgd.py",
    "test_replay_fallback.py",
)

# The destruction of a graph clears the cuBLAS workspaces of its stream from this torch on (pytorch#175276).
CLEARED_WITH_THE_GRAPH = (2, 12)

CURES = (
    Cure(
        "live gradients move before a replay",
        "pytorch#181723, #55562, #97415",
        (
            Edit(
                "network.py",
                "        if not reclaim(self._wiring.parameters(), self._lent):\n"
                '            return "gradients-held"\n'
                "        self._lent.clear()\n",
                "",
            ),
        ),
        gpu=(
            f"{TRAPS}::test_accumulated_gradients_match_native",
            f"{TRAPS}::test_gradients_from_autograd_grad_stay",
            f"{CHANGES}::test_infinity_in_the_second_microbatch_skips_the_step",
            f"{CHANGES}::test_windows_of_changing_length_keep_the_recording",
            f"{FITS}::test_windows_of_any_length_match",
            f"{FITS}::test_fit_of_every_optimizer_matches",
        ),
        cpu=(
            f"{GUARD}::test_every_microbatch_matches_native",
            f"{GUARD}::test_kept_gradients_make_the_next_forward_native",
        ),
    ),
    Cure(
        "gradients that others hold stop a replay",
        "pytorch#181723",
        (
            Edit(
                "gradients.py",
                "    if any(memory.others_hold(live) for memory in memories):\n        return False\n",
                "",
            ),
        ),
        gpu=(
            f"{TRAPS}::test_gradients_from_autograd_grad_stay",
            f"{TRAPS}::test_view_of_a_live_gradient_stays_one",
            f"{HOOKS}::test_optimizer_inside_the_backward_matches[kept]",
        ),
        cpu=(f"{LAYOUTS}::test_memory_that_others_hold_is_not_reclaimed",),
    ),
    Cure(
        "a hooked weight gets a gradient of its own",
        "TransformerEngine#2937",
        (
            Edit(
                "replaying.py",
                "        if self.recording.has_hooked_weights():\n            self._copy_for_hooks(gradients)\n",
                "",
            ),
        ),
        gpu=(f"{TRAPS}::test_gradient_kept_by_a_hook_stays",),
        cpu=(f"{GUARD}::test_weight_hook_gets_a_gradient_of_its_own",),
    ),
    Cure(
        "hooks of unused weights stay silent",
        "None in hooks",
        (
            Edit(
                "network.py", 'return "unused-hooked" if entry.recording.has_hooks_in_vain() else entry', "return entry"
            ),
        ),
        gpu=(
            f"{HOOKS}::test_hooks_of_unused_weights_stay_silent",
            f"{HOOKS}::test_optimizer_inside_the_backward_matches[unused]",
        ),
        cpu=(f"{GUARD}::test_hook_of_a_weight_without_gradient_stays_silent",),
    ),
    Cure(
        "warm-up and capture compute gradients apart from .grad",
        "TransformerEngine#869",
        (
            Edit("recording.py", "weight.detach().requires_grad_() for weight in", "weight for weight in"),
            Edit(
                "recording.py",
                "            return torch.autograd.grad(roots, self.targets(inputs), given, allow_unused=True)\n",
                "            torch.autograd.backward(roots, given)\n"
                "            return tuple(target.grad for target in self.targets(inputs))\n",
            ),
        ),
        gpu=(f"{CHANGES}::test_recording_in_the_middle_of_a_window_keeps_gradients",),
        cpu=(f"{GUARD}::test_every_microbatch_matches_native",),
    ),
    Cure(
        "recording over aliases of the weights",
        "pytorch#180090",
        (Edit("recording.py", "weight.detach().requires_grad_() for weight in", "weight for weight in"),),
        gpu=(f"{CHANGES}::test_losses_that_stay_alive_do_not_stop_later_recordings",),
    ),
    Cure(
        "warm-up uses the idle memory of the pool",
        "pytorch#188150, #119640",
        (
            Edit(
                "capture.py",
                "        if not self._holds_memory:\n            yield\n",
                "        if True:\n            yield\n",
            ),
        ),
        gpu=(f"{MEMORY}::test_five_layouts_reserve_at_most_half_as_much_again_as_native",),
    ),
    Cure(
        "a watched pass keeps its activations off the device",
        "pytorch#188150, #119640",
        (Edit("network.py", 'spare = served == "observed" and', "spare = False and"),),
        gpu=(f"{MEMORY}::test_five_layouts_reserve_at_most_half_as_much_again_as_native",),
    ),
    Cure(
        "what is kept off the device comes back as it lay",
        "bits depend on strides and alignment",
        (
            Edit(
                "offload.py",
                "memory.as_strided(saved.shape, saved.stride, saved.shift)",
                "memory[saved.shift :][: saved.shape.numel()].view(saved.shape)",
            ),
        ),
        gpu=(f"{MEMORY}::test_kept_tensor_leaves_the_device_and_comes_back_as_it_lay",),
        cpu=(f"{MEMORY}::test_kept_tensor_comes_back_as_it_lay",),
    ),
    Cure(
        "the autocast cache is cleared around warm-up and capture",
        "pytorch#71631, Lightning#20921",
        (Edit("recording.py", "torch.clear_autocast_cache()", "None", count=4),),
        gpu=(f"{TRAPS}::test_weight_used_three_times_matches_under_autocast",),
    ),
    Cure(
        "the autocast cache setting is part of the layout",
        "Lightning#21616",
        (Edit("layout.py", "torch.is_autocast_cache_enabled())", "True)"),),
        gpu=(f"{TRAPS}::test_autocast_settings_make_layouts",),
        cpu=(f"{LAYOUTS}::test_autocast_settings_make_another_layout",),
    ),
    Cure(
        "captures leave other threads alone",
        "LibreYOLO#681",
        (
            Edit(
                "capture.py",
                'pool=self._pool, capture_error_mode="thread_local"',
                'pool=self._pool, capture_error_mode="global"',
            ),
        ),
        gpu=(f"{REPORTS}::test_memory_pinned_during_a_capture",),
    ),
    Cure(
        "buffers are put back after warm-up",
        "LibreYOLO#671",
        (
            Edit(
                "preservation.py",
                "            store[key] = values.held\n            values.restore()\n",
                "            store[key] = values.held\n",
            ),
        ),
        gpu=(f"{TRAPS}::test_recording_leaves_buffers_and_random_state", f"{FITS}::test_resumed_fit_matches"),
        cpu=(f"{GUARD}::test_every_microbatch_matches_native",),
    ),
    Cure(
        "the random stream is put back after warm-up",
        "pytorch#84614, #176752",
        (Edit("preservation.py", "        set_random_state(self._random, self._device)\n", ""),),
        gpu=(
            f"{REPORTS}::test_random_stream_is_native_over_interleaved_recordings",
            f"{TRAPS}::test_recording_leaves_buffers_and_random_state",
        ),
    ),
    Cure(
        "a recomputed forward draws the same random numbers",
        "pytorch#84614",
        (
            Edit(
                "replaying.py",
                "            set_random_state(self.random, self.recording.device)\n",
                "            pass\n",
            ),
        ),
        gpu=(
            f"{TRAPS}::test_loss_that_changes_its_mind_is_recomputed",
            f"{BACKWARDS}::test_dropout_is_the_same_in_a_further_backward",
        ),
    ),
    Cure(
        "the way out of a failed capture",
        "pytorch#190308",
        (
            Edit(
                "capture.py", "                self._abandon(graph)\n                raise\n", "                raise\n"
            ),
        ),
        gpu=(
            f"{TRAPS}::test_failed_capture_goes_on_native_and_others_record",
            f"{REPORTS}::test_failed_recording_of_one_layout_between_others",
        ),
    ),
    Cure(
        "graphs of retired recordings stay",
        "pytorch#193402",
        (
            Edit("capture.py", "        self._graphs.append(graph)\n", ""),
            Edit(
                "ledger.py", "        entry.retired = label\n", "        entry.retired, entry.recording = label, None\n"
            ),
        ),
        gpu=(f"{REPORTS}::test_retired_recording_leaves_the_others_whole",),
        since=CLEARED_WITH_THE_GRAPH,
    ),
    Cure(
        "each recorder has a stream of its own",
        "pytorch#193402",
        (Edit("capture.py", "self.stream = _stream_of_its_own(device)", "self.stream = torch.cuda.Stream(device)"),),
        gpu=(f"{REPORTS}::test_closed_replay_leaves_another_network_whole",),
        since=CLEARED_WITH_THE_GRAPH,
    ),
    Cure(
        "the cap on layouts",
        "pytorch#188150, #119640",
        (Edit("ledger.py", "if sum(map(_has_place, self.entries.values())) >= self._options.layouts:", "if False:"),),
        gpu=(
            f"{REPORTS}::test_layouts_beyond_the_cap_take_no_memory",
            f"{TRAPS}::test_layouts_beyond_the_cap_run_native",
        ),
        cpu=(f"{LAYOUTS}::test_ledger_caps_layouts_and_reports_as_json",),
    ),
    Cure(
        "evaluation runs native",
        "Megatron-LM#6992",
        (Edit("network.py", "if not torch.is_grad_enabled() or not self.network.training:", "if False:"),),
        gpu=(
            f"{REPORTS}::test_evaluation_between_microbatches_runs_native",
            f"{FITS}::test_fit_of_every_optimizer_matches",
        ),
        cpu=(f"{FALLBACK}::test_evaluation_and_no_grad_run_native", f"{FALLBACK}::test_fit_on_cpu_matches_native"),
    ),
    Cure(
        "replay does anything at all",
        "LibreYOLO#716",
        (Edit("network.py", "        if isinstance(served, Recording):\n", "        if False:\n"),),
        gpu=(f"{REPORTS}::test_a_model_without_recordings_says_so", f"{FITS}::test_schedule_of_every_step_is_followed"),
        cpu=(f"{GUARD}::test_what_stays_is_replayed", f"{GUARD}::test_every_microbatch_matches_native"),
    ),
    Cure(
        "attributes written in the forward are found",
        "pytorch#114844",
        (Edit("preservation.py", "            if changed:\n", "            if False:\n"),),
        gpu=(
            f"{REPORTS}::test_result_left_on_the_module_is_right",
            f"{TRAPS}::test_attribute_written_in_forward_retires_and_counts_right",
        ),
    ),
    Cure(
        "weights are swapped by place, not by name",
        "one module under two names",
        (Edit("recording.py", "in wiring.places() if id(place[2]) in wanting", "in wiring.places()[:1]"),),
        cpu=(f"{NETWORKS}::test_modules_and_weights_with_several_names_are_replayed",),
    ),
    Cure(
        "gradients that go elsewhere are found",
        "weights beside the module tree",
        (
            Edit(
                "recording.py", "            passes.require_known_leaves(node, inputs, outputs)\n", "            pass\n"
            ),
        ),
        cpu=(f"{NETWORKS}::test_gradients_that_go_elsewhere_retire",),
    ),
    Cure(
        "weights written unseen by autograd are found",
        "weight.data in the forward",
        (
            Edit(
                "preservation.py",
                "weight.moved() or weight.written() or weight.differ() for weight",
                "weight.written() for weight",
            ),
            Edit("recording.py", "        passes.require_unmoved()\n", ""),
        ),
        cpu=(f"{NETWORKS}::test_forwards_that_write_what_a_replay_would_not_retire",),
    ),
    Cure(
        "containers filled in the forward are found and put back",
        "auxiliary losses in a list",
        (Edit("preservation.py", "for container in _containers(held)]", "for container in ()]"),),
        cpu=(
            f"{NETWORKS}::test_forwards_that_write_what_a_replay_would_not_retire",
            f"{NETWORKS}::test_recording_leaves_containers_as_they_were",
        ),
    ),
    Cure(
        "a recording does not count as a write",
        "a native forward that awaits its backward",
        (Edit("preservation.py", "        self._counter.close()\n", ""),),
        cpu=(f"{NETWORKS}::test_pending_native_forward_outlives_a_recording",),
    ),
    Cure(
        "random numbers of the host are found",
        "host-random",
        (Edit("preservation.py", "            raise UnrecordableError(Label.RANDOM)\n", "            pass\n"),),
        gpu=(f"{REPORTS}::test_random_numbers_of_the_host_are_drawn_natively",),
        cpu=(f"{GUARD}::test_dropout_on_the_host_is_refused",),
    ),
    Cure(
        "an input written in the forward is found",
        "input-mutated",
        (Edit("recording.py", "            raise UnrecordableError(Label.INPUT)\n", "            pass\n", count=2),),
        gpu=(f"{TRAPS}::test_input_written_in_forward_retires",),
        cpu=(f"{NETWORKS}::test_writing_into_the_input_unseen_by_autograd_retires",),
    ),
    Cure(
        "the learning rate is read at every step",
        "pytorch#106802",
        (
            Edit(
                "optim/musgd.py",
                '_number(group["lr"], device)',
                '_number(group.get("initial_lr", group["lr"]), device)',
            ),
        ),
        cpu=(f"{MUSGD}::test_scheduled_learning_rate_is_followed",),
    ),
    Cure(
        "weights at new addresses are noticed",
        "vllm#48941",
        (Edit("recording.py", "            if not self.fingerprint.equals(now):\n                return False\n", ""),),
        gpu=(
            f"{CHANGES}::test_changed_weights_are_recorded_anew",
            f"{TRAPS}::test_weights_at_new_addresses_are_recorded_anew",
            f"{FITS}::test_average_taken_inside_a_window_is_recorded_anew",
        ),
        cpu=(f"{GUARD}::test_change_is_noticed_at_the_next_forward",),
    ),
    Cure(
        "hooks inside the network are noticed",
        "hooks registered after recording",
        (Edit("network.py", "        if self._wiring.hooked():\n", "        if False:\n"),),
        gpu=(
            f"{HOOKS}::test_hooks_registered_after_recording_fire",
            f"{TRAPS}::test_hooks_inside_the_network_run_native",
        ),
        cpu=(f"{GUARD}::test_hook_of_all_modules_is_noticed", f"{GUARD}::test_hook_in_a_new_dictionary_is_noticed"),
    ),
    Cure(
        "training flags are part of the layout",
        "the layout key",
        (
            Edit(
                "layout.py",
                "AutocastForm.current(), training, wanting, kernel_choice()",
                "AutocastForm.current(), (), wanting, kernel_choice()",
            ),
        ),
        gpu=(f"{CHANGES}::test_norm_set_to_evaluation_makes_a_layout",),
        cpu=(f"{LAYOUTS}::test_anything_that_copying_would_hide_makes_another_layout[training]",),
    ),
    Cure(
        "frozen weights are part of the layout",
        "toggle_optimizer, BackboneFinetuning",
        (
            Edit(
                "layout.py",
                "AutocastForm.current(), training, wanting, kernel_choice()",
                "AutocastForm.current(), training, wanting and (True,), kernel_choice()",
            ),
        ),
        gpu=(f"{FREEZING}::test_frozen_weights_make_a_layout[generator-first-cuda]",),
        cpu=(f"{FREEZING}::test_frozen_weights_make_a_layout[generator-first-cpu]",),
    ),
    Cure(
        "outputs without gradients are no failure",
        "nothing to record, nothing to give up for",
        (
            Edit(
                "network.py",
                "        if not any(output.requires_grad for output in outputs):\n            return result, False\n",
                "        if entry is not None and not any(output.requires_grad for output in outputs):\n"
                '            self._ledger.retire(entry, Label.CAPTURE, "no output requires a gradient")\n',
            ),
        ),
        gpu=(f"{FREEZING}::test_outputs_without_gradients_pass[cuda]",),
        cpu=(f"{FREEZING}::test_outputs_without_gradients_pass[cpu]",),
    ),
    Cure(
        "strides and wishes for gradients are part of the layout",
        "the layout key",
        (
            Edit(
                "layout.py",
                "tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, address)",
                "(), tensor.dtype, tensor.device, False, address)",
            ),
        ),
        cpu=(
            f"{LAYOUTS}::test_anything_that_copying_would_hide_makes_another_layout[stride]",
            f"{LAYOUTS}::test_anything_that_copying_would_hide_makes_another_layout[requires-grad]",
        ),
    ),
    Cure(
        "an unused weight has no gradient",
        "zeros in place of None",
        (Edit("recording.py", "given, allow_unused=True)", "given, allow_unused=True, materialize_grads=True)"),),
        gpu=(
            f"{TRAPS}::test_unused_weight_has_no_gradient",
            f"{TRAPS}::test_output_without_gradient_leaves_its_weights_without",
        ),
        cpu=(f"{GUARD}::test_hook_of_a_weight_without_gradient_stays_silent",),
    ),
    Cure(
        "one forward at a time awaits its backward",
        "overlapping forwards",
        (Edit("network.py", "        if turn is not None and not turn.spent:\n", "        if False:\n"),),
        gpu=(f"{TRAPS}::test_second_forward_before_backward_runs_native",),
    ),
    Cure(
        "forwards that share a backward are found",
        "overlapping forwards",
        (Edit("entry.py", "            self._on_shared()\n", "            pass\n"),),
        gpu=(
            f"{TRAPS}::test_forwards_that_share_a_backward_are_never_replayed",
            f"{TRAPS}::test_forwards_that_share_a_backward_late_retire_from_there_on",
        ),
    ),
    Cure(
        "a second backward that comes too late is refused",
        "retain_graph",
        (
            Edit("replaying.py", "elif self._inputs is None and self.recording.turn is not self.key:", "elif False:"),
            Edit("replaying.py", "elif self._versions != self._weight_versions():", "elif False:"),
        ),
        gpu=(
            f"{TRAPS}::test_second_backward_after_the_next_forward_is_refused",
            f"{BACKWARDS}::test_further_backward_that_comes_too_late_is_refused[replay_next-next forward-cuda]",
        ),
        cpu=(
            f"{BACKWARDS}::test_further_backward_that_comes_too_late_is_refused[replay_next-next forward-cpu]",
            f"{BACKWARDS}::test_further_backward_that_comes_too_late_is_refused[write_weight-have changed-cpu]",
        ),
    ),
    Cure(
        "a second backward through the newest forward is computed natively",
        "retain_graph",
        (Edit("replaying.py", "Service.AGAIN if again else beyond_replay(incoming)", "beyond_replay(incoming)"),),
        gpu=(f"{BACKWARDS}::test_dropout_is_the_same_in_a_further_backward",),
        cpu=(f"{BACKWARDS}::test_further_backward_that_comes_too_late_is_refused",),
    ),
    Cure(
        "create_graph=True behind a replayed forward gets its graph",
        "gradient penalties",
        (
            Edit(
                "replaying.py",
                "Service.AGAIN if again else beyond_replay(incoming)",
                "Service.AGAIN if again else None",
            ),
        ),
        gpu=(f"{BACKWARDS}::test_begun_late_it_is_served_once_and_the_layout_retires[penalty-create_graph-cuda]",),
        cpu=(
            f"{BACKWARDS}::test_begun_late_it_is_served_once_and_the_layout_retires[penalty-create_graph-cpu]",
            f"{BACKWARDS}::test_late_penalty_through_a_loss_with_a_gradient_of_its_own",
        ),
    ),
    Cure(
        "create_graph=True keeps a layout from being recorded",
        "gradient penalties",
        (Edit("entry.py", "if service := beyond_replay([gradient]):", "if service := None:"),),
        gpu=(f"{BACKWARDS}::test_seen_from_the_start_such_a_layout_is_never_recorded[penalty-cuda]",),
        cpu=(
            f"{BACKWARDS}::test_seen_from_the_start_such_a_layout_is_never_recorded[penalty-cpu]",
            f"{BACKWARDS}::test_penalty_of_every_fourth_step_in_a_layout_of_its_own",
        ),
    ),
    Cure(
        "batched gradients are not replayed",
        "is_grads_batched",
        (
            Edit(
                "replaying.py",
                "functorch.is_legacy_batchedtensor(tensor) or functorch.is_functorch_wrapped_tensor(tensor)",
                "False",
            ),
        ),
        gpu=(f"{BACKWARDS}::test_seen_from_the_start_such_a_layout_is_never_recorded[batched-cuda]",),
        cpu=(f"{BACKWARDS}::test_begun_late_it_is_served_once_and_the_layout_retires[batched-is_grads_batched-cpu]",),
    ),
    Cure(
        "what is recomputed calls no hooks of its own",
        "gradient penalties",
        (Edit("replaying.py", "    return tensor.view_as(tensor)\n", "    return tensor\n"),),
        gpu=(f"{BACKWARDS}::test_hooks_are_called_once_for_each_backward",),
        cpu=(f"{BACKWARDS}::test_hooks_are_called_once_for_each_backward",),
    ),
    Cure(
        "what is recomputed runs in the mode of its forward",
        "retain_graph",
        (Edit("replaying.py", "                module.training = training\n", "                pass\n"),),
        gpu=(
            f"{BACKWARDS}::test_begun_late_it_is_served_once_and_the_layout_retires[thrice_in_evaluation-again-cuda]",
        ),
        cpu=(f"{BACKWARDS}::test_begun_late_it_is_served_once_and_the_layout_retires[thrice_in_evaluation-again-cpu]",),
    ),
    Cure(
        "a returned weight, buffer or input is the thing itself",
        "outputs with a life of their own",
        (
            Edit("recording.py", "outputs, known(self._given(inputs)))", "outputs)"),
            Edit(
                "network.py",
                "flatten(result, outputs, known([*tensors, *self._wiring.tensors()]))",
                "flatten(result, outputs)",
            ),
        ),
        gpu=(
            f"{STRUCTURES}::test_what_is_returned_is_the_thing_itself",
            f"{STRUCTURES}::test_returned_weights_and_buffers_match",
        ),
        cpu=(
            f"{STRUCTURES}::test_what_is_returned_is_the_thing_itself",
            f"{STRUCTURES}::test_returned_weights_and_buffers_match",
        ),
    ),
    Cure(
        "outputs that only pass through carry no hook",
        "outputs with a life of their own",
        (
            Edit(
                "entry.py",
                "if output.grad_fn is not None and output.grad_fn._sequence_nr() >= begin",
                "if output.requires_grad",
            ),
            Edit(
                "network.py",
                "flatten(result, outputs, known([*tensors, *self._wiring.tensors()]))",
                "flatten(result, outputs)",
            ),
        ),
        gpu=(f"{STRUCTURES}::test_no_hook_is_left_on_what_lives_on",),
        cpu=(f"{STRUCTURES}::test_no_hook_is_left_on_what_lives_on",),
    ),
    Cure(
        "the watch of forwards ends with the replay",
        "outputs with a life of their own",
        (Edit("network.py", "        self._backwards.forget()\n", ""),),
        gpu=(f"{STRUCTURES}::test_forwards_watched_at_the_end_are_watched_no_longer",),
        cpu=(f"{STRUCTURES}::test_forwards_watched_at_the_end_are_watched_no_longer",),
    ),
    Cure(
        "a returned weight that is used in several places runs native",
        "order of sums",
        (Edit("recording.py", "uses[id(given[index])] > 1 for", "False for"),),
        gpu=(f"{STRUCTURES}::test_what_is_returned_and_used_in_several_places_runs_native",),
        cpu=(f"{STRUCTURES}::test_what_is_returned_and_used_in_several_places_runs_native",),
    ),
    Cure(
        "one tensor in two places is one",
        "duplicates",
        (Edit("structure.py", '    seen[id(value)] = Node("same", len(tensors))\n', ""),),
        gpu=(f"{STRUCTURES}::test_one_tensor_in_two_places_matches",),
        cpu=(
            f"{STRUCTURES}::test_one_tensor_in_two_places_matches",
            f"{STRUCTURES}::test_known_tensors_are_named_and_not_taken",
        ),
    ),
    Cure(
        "one tensor passed twice makes a layout of its own",
        "duplicates",
        (Edit("structure.py", "if dense and (len(args) == 1 or len(set(map(id, args))) == len(args)):", "if dense:"),),
        gpu=(f"{STRUCTURES}::test_one_tensor_passed_twice_is_a_layout_of_its_own",),
        cpu=(f"{STRUCTURES}::test_one_tensor_passed_twice_is_a_layout_of_its_own",),
    ),
    Cure(
        "a first replay's backward says what the loss asks for",
        "intermediate outputs",
        (Edit("network.py", "        if fresh and entry.learn(demand):\n", "        if False:\n"),),
        gpu=(f"{STRUCTURES}::test_output_that_gets_a_gradient_by_another_one_alone_is_no_demand",),
        cpu=(f"{STRUCTURES}::test_output_that_gets_a_gradient_by_another_one_alone_is_no_demand",),
    ),
    Cure(
        "dataclasses are taken only where their fields make them",
        "containers",
        (
            Edit(
                "structure.py",
                "    same = all(getattr(anew, name) is item for name, item in held.items())\n",
                "    same = True\n",
            ),
        ),
        cpu=(f"{STRUCTURES}::test_dataclasses_that_their_fields_do_not_make_are_refused",),
    ),
    Cure(
        "a backward in another autocast region is not replayed",
        "manual optimization under autocast",
        (
            Edit("gradients.py", "return cls(forms, autocast_in_force())", "return cls(forms, None)"),
            Edit("entry.py", "self._autocast = autocast_in_force()", "self._autocast = None"),
        ),
        gpu=(f"{BACKWARDS}::test_backward_counts_with_the_region_it_is_called_in",),
        cpu=(f"{BACKWARDS}::test_backward_counts_with_the_region_it_is_called_in",),
    ),
    Cure(
        "a backward is recorded in its own autocast region",
        "manual optimization under autocast",
        (Edit("recording.py", " if autocast is None else autocast.region():", ":"),),
        gpu=(f"{BACKWARDS}::test_backward_counts_with_the_region_it_is_called_in[always-cuda]",),
    ),
    Cure(
        "cached weights are left alone",
        "parametrize.cached",
        (Edit("network.py", "(cached := _weights_are_cached(self._wiring.modules))", "(cached := False)"),),
        gpu=(f"{STRUCTURES}::test_weights_that_torch_caches_are_left_alone",),
        cpu=(f"{STRUCTURES}::test_weights_that_torch_caches_are_left_alone",),
    ),
    Cure(
        "a forward that fails by itself is not run again",
        "offloading",
        (Edit("network.py", "            if not is_refusal(error):\n                raise\n", ""),),
        cpu=(f"{MEMORY}::test_network_that_fails_raises_its_own_error",),
    ),
    Cure(
        "a forward is run again whose tensors cannot be kept elsewhere",
        "offloading",
        (
            Edit(
                "offload.py",
                "places[-1] is _REFUSING or any(place in _OWN for place in places)",
                "places[-1] is _REFUSING",
            ),
        ),
        cpu=(f"{MEMORY}::test_pass_whose_activations_the_host_cannot_take_is_run_as_it_is",),
    ),
    Cure(
        "a forward is run again that torch refuses beside hooks",
        "offloading",
        (Edit("offload.py", "places[-1] is _REFUSING or any(place in _OWN for place in places)", "False"),),
        cpu=(f"{MEMORY}::test_network_that_bears_no_hooks_on_saved_tensors_fits_as_natively",),
    ),
    Cure(
        "what is recomputed meets the buffers of its forward",
        "buffers that are read and written",
        (Edit("replaying.py", "[held.clone() for held in self.recording.moving]", "self.recording.moving"),),
        gpu=(f"{BACKWARDS}::test_what_is_computed_natively_meets_the_buffers_of_its_forward",),
        cpu=(f"{BACKWARDS}::test_what_is_computed_natively_meets_the_buffers_of_its_forward",),
    ),
    Cure(
        "bits are compared, not values",
        "NaN and -0.0",
        (
            Edit(
                "bits.py",
                "torch.equal(as_integers(left), as_integers(right.to(left.device)))",
                "torch.equal(left, right.to(left.device))",
            ),
        ),
        cpu=(
            f"{BITS}::test_nan_equals_itself_and_zero_differs_from_minus_zero",
            f"{BITS}::test_equal_ends_pass_with_their_nan",
        ),
    ),
    Cure(
        "MuSGD takes 2 and 4 dimensions alone for matrices",
        "ultralytics#25447",
        (Edit("optim/buckets.py", "weight.ndim in (2, 4) and", "weight.ndim >= 2 and"),),
        cpu=(f"{MUSGD}::test_other_dimensions_take_sgd_bit_for_bit",),
    ),
    Cure(
        "MuSGD orthogonalizes channels_last weights as they lie",
        "ultralytics#26035",
        (Edit("optim/buckets.py", "        tensor = tensor.permute(0, 2, 3, 1)\n", "        pass\n"),),
        cpu=(f"{MUSGD}::test_channels_last_weights_move_like_contiguous_ones",),
    ),
    Cure(
        "the callback looks for the network when the module has been set up",
        "configure_model, setup",
        (
            Edit(
                "callback.py",
                "    def setup(self, _trainer: Trainer, _module: ",
                "    def setup(self, trainer: Trainer, pl_module: ",
            ),
            Edit("callback.py", "            self.replay = None\n", "            self._found(trainer, pl_module)\n"),
            Edit("callback.py", "    def on_fit_start(", "    def _found("),
            Edit("callback.py", "    def on_train_epoch_start(", "    def _follow("),
        ),
        gpu=(f"{SETUP}::test_network_that_trains_is_replayed",),
        cpu=(f"{SETUP}::test_network_that_trains_is_replayed",),
    ),
    Cure(
        "the callback follows a network that is replaced",
        "on_fit_start, between epochs",
        (Edit("callback.py", "    def on_train_epoch_start(", "    def _follow("),),
        gpu=(f"{SETUP}::test_network_replaced_between_epochs_is_followed[cuda]",),
        cpu=(f"{SETUP}::test_network_replaced_between_epochs_is_followed[cpu]",),
    ),
    Cure(
        "moves are counted since the last close",
        "with replay, once an epoch",
        (
            Edit(
                "network.py",
                "        self._moves = Moves()\n        self._lent.clear()\n",
                "        self._lent.clear()\n",
            ),
        ),
        gpu=(f"{REUSE}::test_moves_between_closed_epochs_do_not_count[cuda]",),
        cpu=(f"{REUSE}::test_moves_between_closed_epochs_do_not_count[cpu]",),
    ),
    Cure(
        "moves are counted, not recordings",
        "with replay, once an epoch",
        (Edit("ledger.py", "count = self._counts[entry.layout]", "count = entry.recorded"),),
        gpu=(f"{REUSE}::test_replay_that_is_closed_after_each_epoch_goes_on[cuda]",),
        cpu=(f"{REUSE}::test_replay_that_is_closed_after_each_epoch_goes_on[cpu]",),
    ),
    Cure(
        "a recording that has served long does not count as moved",
        "capture_network over many fits",
        (Edit("ledger.py", ">= _PAID:\n            self._counts", ">= 10**9:\n            self._counts"),),
        gpu=(f"{REUSE}::test_replay_that_stays_attached_over_many_fits_goes_on[cuda]",),
        cpu=(f"{REUSE}::test_replay_that_stays_attached_over_many_fits_goes_on[cpu]",),
    ),
    Cure(
        "a change of device discards the recordings",
        "Lightning moves the module to the CPU after a fit",
        (
            Edit(
                "network.py",
                "        if self._recorder is not None and self._recorder.device != device:\n",
                "        if False:\n",
            ),
        ),
        gpu=(f"{REUSE}::test_network_that_leaves_its_device_and_comes_back_goes_on[cuda]",),
        cpu=(f"{REUSE}::test_network_that_leaves_its_device_and_comes_back_goes_on[cpu]",),
    ),
    Cure(
        "weights that move all the time retire",
        "parameters-moved",
        (Edit("ledger.py", "if count >= _MOVES:", "if False:"),),
        gpu=(f"{REUSE}::test_weights_that_move_all_the_time_end_it[cuda]",),
        cpu=(f"{REUSE}::test_weights_that_move_all_the_time_end_it[cpu]",),
    ),
    Cure(
        "the cap counts recordings, not sightings",
        "a factor that warms up",
        (Edit("ledger.py", "return entry.recording is not None or entry.retired is not None", "return True"),),
        gpu=(f"{CAP}::test_argument_that_warms_up_takes_no_place[cuda]",),
        cpu=(f"{CAP}::test_argument_that_warms_up_takes_no_place[cpu]",),
    ),
    Cure(
        "layouts that are only watched are bounded",
        "ever new values of an argument",
        (Edit("ledger.py", "            self._forget_one_of_too_many()\n", ""),),
        gpu=(f"{CAP}::test_ever_new_values_keep_the_books_small[cuda]",),
        cpu=(f"{CAP}::test_ever_new_values_keep_the_books_small[cpu]",),
    ),
    Cure(
        "the older half of watched layouts stays",
        "more layouts in turn than are watched",
        (Edit("ledger.py", "watched[len(watched) // 2]", "watched[0]"),),
        gpu=(f"{CAP}::test_layouts_in_a_long_row_are_recorded_all_the_same[cuda]",),
        cpu=(f"{CAP}::test_layouts_in_a_long_row_are_recorded_all_the_same[cpu]",),
    ),
    Cure(
        "sparse buffers retire a layout",
        "torch's own error",
        (Edit("wiring.py", "list(filter(has_address, self._tensors))", "self._tensors"),),
        gpu=(
            f"{ERRORS}::test_sparse_buffer_runs_native",
            f"{ERRORS}::test_buffer_that_becomes_sparse_runs_native[cuda]",
        ),
        cpu=(
            f"{ERRORS}::test_sparse_buffer_runs_native",
            f"{ERRORS}::test_buffer_that_becomes_sparse_runs_native[cpu]",
        ),
    ),
    Cure(
        "lazy networks are refused",
        "torch's own error",
        (Edit("network.py", "        if is_lazy(held):\n", "        if False:\n"),),
        cpu=(f"{ERRORS}::test_lazy_network_is_refused_until_it_has_a_shape",),
    ),
    Cure(
        "attributes are compared by whatever they are",
        "an array in a number's place",
        (Edit("wiring.py", "    except Exception:", "    except RuntimeError:"),),
        gpu=(f"{ERRORS}::test_attribute_that_becomes_something_else_is_recorded_anew",),
        cpu=(f"{ERRORS}::test_attribute_that_becomes_something_else_is_recorded_anew",),
    ),
    Cure(
        "traced networks are pickled",
        "RecursionError",
        (Edit("route.py", "if isinstance(self._network, GraphModule):", "if False:"),),
        cpu=(f"{ERRORS}::test_copies_of_a_traced_network_are_native[pickle]",),
    ),
    Cure(
        "the switches of kernels are part of the layout",
        "TF32, reduced precision, attention",
        (Edit("kernels.py", "*[switch() for switch in _SWITCHES]", "*[switch() for switch in _SWITCHES[:3]]"),),
        cpu=(
            f"{LAYOUTS}::test_kernel_switches_make_another_layout",
            f"{LAYOUTS}::test_kernel_calls_make_another_layout",
            f"{LAYOUTS}::test_attention_kernel_of_a_region_makes_another_layout",
            f"{LAYOUTS}::test_precision_of_newer_kind_makes_another_layout",
        ),
    ),
    Cure(
        "the precision of float32 is asked for by operation",
        "fp32_precision",
        (Edit("kernels.py", "    if precision is None:\n", "    if True:\n"),),
        cpu=(f"{LAYOUTS}::test_precision_of_newer_kind_makes_another_layout",),
        since=(2, 9),
    ),
    Cure(
        "one replay at a time is attached to a network",
        "two callbacks for one path",
        (Edit("network.py", 'if isinstance(vars(self.network).get("forward"), Route):', "if False:"),),
        cpu=(
            f"{ATTACH}::test_second_replay_of_a_network_is_refused",
            f"{ATTACH}::test_second_callback_for_a_network_is_refused",
        ),
    ),
    Cure(
        "networks compiled in place are refused",
        "network.compile()",
        (Edit("network.py", 'if getattr(network, "_compiled_call_impl", None) is not None:', "if False:"),),
        cpu=(f"{ATTACH}::test_network_compiled_in_place_is_refused",),
    ),
    Cure(
        "the compiler does not trace the replay",
        "a compiled function around the network",
        (Edit("route.py", "if torch.compiler.is_compiling():", "if False:"),),
        gpu=(f"{ATTACH}::test_compiled_function_around_the_network_breaks_there",),
        cpu=(f"{ATTACH}::test_compiled_function_around_the_network_breaks_there",),
    ),
)
