# What `make bench` and its kin drive; peers' programs are built by bench/setup.sh.

.PHONY: bench bench-full bench-growth bench-setup bench-drivers performance bench-alone bench-latency \
	bench-call-sites bench-linear bench-steps bench-step-peers bench-bundle cost-sample cost-judge cost-fit cost-gate \
	ranking cliffs roofline

$(call obj,$(call c_in,bench)): INCLUDES = -Itools
$(BUILD)/bench/attune_driver: $(call obj,$(addprefix bench/drivers/,driver.c attune_driver.c)) $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) -L$(BUILD) -lattune $(CORE_LIBS) $(INTO)
$(BUILD)/bench/probe_driver: $(call obj,$(addprefix bench/drivers/,driver.c probe_driver.c)) \
		$(BUILD)/libattune-tool.a $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o %.a,$^) -L$(BUILD) -lattune -ljansson $(CORE_LIBS) $(INTO)

CALL_BENCH := $(addprefix $(BUILD)/bench/,latency call_sites steps listed)
$(CALL_BENCH): $(BUILD)/bench/%: $(BUILD)/obj/bench/calls/%.o $(BUILD)/libattune.so
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) -L$(BUILD) -lattune $(CORE_LIBS) $(INTO)

$(call obj,bench/survey.c): INCLUDES = -Itools -Ilab -Ireference
$(BUILD)/bench/survey $(BUILD)/bench/linear: $(BUILD)/bench/%: $(call obj,bench/%.c) \
		$(addprefix $(BUILD)/libattune,-lab.a -tool.a -support.a -reference.a .so)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
		-L$(BUILD) -lattune -ljansson $(CORE_LIBS) $(INTO)

# They call internal functions of the library, as test programs do.
COST_BENCH := $(BUILD)/bench/ranking $(BUILD)/bench/cost_sample
$(call obj,bench/ranking.c bench/cost_sample.c): INCLUDES = $(TEST_INCLUDES)
$(call obj,bench/cost_fit.c): INCLUDES = -Isrc -I$(BUILD)/gen
$(COST_BENCH): $(addprefix $(BUILD)/libattune,-lab.a -tool.a -support.a -reference.a -internal.a)
$(COST_BENCH): $(BUILD)/bench/%: $(call obj,bench/%.c)
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CORE_LIBS) -ljansson $(INTO)

# What chooses schedules, with constants that it may change.
COST_FIT_OBJ := $(patsubst src/%.c,$(BUILD)/obj/cost_fit/%.o,$(call c_in,src/schedule))
$(COST_FIT_OBJ): INCLUDES = -Isrc -I$(BUILD)/gen
$(BUILD)/obj/cost_fit/%.o: src/%.c $(if $(SANITIZE),$(call flags,SANITIZE))
	@mkdir -p $(@D)
	$(call say,cc $<)
	$(Q)$(CC) $(BASE_CFLAGS) -DMHA_COST_FIT $(INCLUDES) $(CPPFLAGS) -MMD -MP -c $< -o $@
$(call obj,bench/cost_fit.c): CPPFLAGS += -DMHA_COST_FIT
$(BUILD)/bench/cost_fit: $(call obj,bench/cost_fit.c) $(COST_FIT_OBJ) $(BUILD)/libattune-internal.a
	@mkdir -p $(@D)
	$(call say,link $@)
	$(Q)$(LINK) $^ $(CORE_LIBS) $(INTO)

# The bundle that is compared with kernels compiled now.
SPEED = $(BUILD)/bench/libspeed.a
$(SPEED): bench/bundle.txt $(BUNDLE_TOOL) $(BUILD)/libattune-codegen.so
	@mkdir -p $(@D)
	$(call say,bundle $@)
	$(Q)ATTUNE_CACHE_DIR= $(BUNDLE_TOOL) bundle -o $@ --header $(@D)/speed.h --name speed \
		--targets $(BUNDLE_TARGETS_$(ARCH)) bench/bundle.txt
$(call obj,bench/bundle.c): $(SPEED)
$(call obj,bench/bundle.c): INCLUDES = -I$(BUILD)/bench
$(BUILD)/bench/bundle: $(call obj,bench/bundle.c) $(SPEED) $(BUILD)/libattune.so
	$(call say,link $@)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' $(filter %.o %.a,$^) -L$(BUILD) -lattune $(CORE_LIBS) $(INTO)

# One run of attune and the peers that are installed or can be (docs/bench.md). BENCH: options, as --clock=cpu.
BENCH ?=
BENCH_PY = @$(BUILD)/bench/venv/bin/python bench/bench.py --build $(BUILD)
bench: bench-setup ## attune compared with its peers, short: the main shapes, some minutes
	$(BENCH_PY) $(BENCH)
bench-full: bench-setup ## attune compared with its peers: all shapes, then how cost grows; half an hour
	$(BENCH_PY) --full $(BENCH)
	$(BENCH_PY) --growth $(BENCH)
bench-growth: bench-setup ## time by length, heads, batch and threads, and memory by length
	$(BENCH_PY) --growth $(BENCH)
performance: bench-setup ## the run of docs/performance.md, and that page anew, 20 minutes; PIECE=S: S seconds of it
	@BUILD='$(BUILD)' PIECE='$(PIECE)' VENV='$(VENV)' bash bench/performance.sh $(BENCH)
bench-setup: all bench-drivers
	@BUILD='$(BUILD)' DEPS='$(DEPS)' CC='$(CC)' CXX='$(CXX)' bash bench/setup.sh
bench-drivers: $(BUILD)/bench/attune_driver $(BUILD)/bench/probe_driver
bench-alone: all ## a table of attune alone: four shapes of attention and three blocks
	@BUILD='$(BUILD)' bash scripts/bench_table.sh

# LATENCY: options, as --workers=2; build/bench/latency --help.
LATENCY ?=
bench-latency: all $(BUILD)/bench/latency ## calls next to busy processes, now and then, and for the first time
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/latency $(LATENCY)

# LISTED: options, a problem, schedules.
bench-listed: all $(BUILD)/bench/listed ## attention over listed keys compared with a loop that only reads them
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/listed $(LISTED)

bench-steps: all $(BUILD)/bench/steps ## steps of a server compared with their parts; STEP_ROWS: options, rows
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so ATTUNE_TIER0=$(abspath $(BUILD))/libattune-tier0.so \
		$(BUILD)/bench/steps $(STEP_ROWS)
# In an environment with vLLM (3.5 GB in $(BUILD)/vllm or VENV=DIR), then in one with zentorch (the bench has one, or
# ZENTORCH_VENV=DIR).
ZENTORCH_VENV ?= $(BUILD)/bench/venv
bench-step-peers: all $(if $(wildcard $(ZENTORCH_VENV)),,bench-setup) ## steps by vLLM, zentorch; STEP_PEERS: options
	@BUILD='$(BUILD)' DEPS='$(DEPS)' VENV='$(VENV)' bash scripts/engines/vllm.sh steps $(STEP_PEERS)
	@ATTUNE_LIBRARY=$(abspath $(BUILD))/libattune.so PYTHONPATH=python \
		$(ZENTORCH_VENV)/bin/python bench/engines/step_peers.py $(STEP_PEERS)
# LINEAR: options and numbers of tokens, as --key-decay 2048.
bench-linear: all $(BUILD)/bench/linear ## linear attention as a share of bandwidth and peak
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/linear $(LINEAR)
bench-call-sites: all $(BUILD)/bench/call_sites ## random lengths by a plan that never waits; memory over 100,000 shapes
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/call_sites
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/call_sites --shapes
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/call_sites --promoted

bench-bundle: all $(BUILD)/bench/bundle ## kernels of a bundle compared with the same ones compiled now
	@ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so $(BUILD)/bench/bundle

# RANKING: options, as --only='vit*'; bench/ranking.py --help.
RANKING ?=
RANKING_PY = @ATTUNE_CODEGEN=$(abspath $(BUILD))/libattune-codegen.so python3 bench/ranking.py --build $(BUILD)
ranking: all $(BUILD)/bench/ranking ## how near tuning and the first choice come to the best schedule; 45 minutes
	$(RANKING_PY) $(RANKING)

# COST: options, as --groups=few; bench/cost.py --help. Timings are added to those that are there.
COST ?=
COST_PY = @python3 bench/cost.py
cost-sample: all $(BUILD)/bench/cost_sample ## times schedules, to fit and judge their cost; 20 minutes
	$(COST_PY) sample --build $(BUILD) $(COST)
cost-judge: $(BUILD)/bench/cost_fit ## how far choices are from the best schedule timed, also with a machine left out
	$(COST_PY) judge --build $(BUILD) $(COST)
cost-gate: $(BUILD)/bench/cost_fit ## whether choices are as good as those of bench/samples, and made in 200 us
	$(COST_PY) gate --build $(BUILD) $(COST)
cost-fit: $(BUILD)/bench/cost_fit ## constants for src/schedule/cost.def; with COST=--write puts them there
	$(COST_PY) fit --build $(BUILD) $(COST)

# CLIFFS, ROOFLINE: options, as --only='rows*' and --seed=2; bench/cliffs.py --help, bench/roofline.py --help.
CLIFFS ?=
ROOFLINE ?=
cliffs: all $(BUILD)/bench/survey ## time against size in small steps, and where it jumps; two minutes
	@python3 bench/cliffs.py --build $(BUILD) $(CLIFFS)
roofline: all $(BUILD)/bench/survey ## random problems of realistic kinds by their share of the roofline; some minutes
	@python3 bench/roofline.py --build $(BUILD) $(ROOFLINE)
