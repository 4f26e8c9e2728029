# Installing: products that know where they lie, wheels, packages and releases.

# Their names stand in commands without quotes.
.PHONY: install install-lab uninstall
DIRECTORIES = DESTDIR PREFIX BINDIR LIBDIR INCLUDEDIR MANDIR DOCDIR BASHCOMPDIR ZSHCOMPDIR
ifneq ($(filter install install-lab install-strip uninstall,$(MAKECMDGOALS)),)
$(foreach name,$(DIRECTORIES),$(if $(filter-out 1,$(words [$($(name))])),\
	$(error $(name) is '$($(name))': a directory to install into must have no blank in its name)))
endif

# ---- What `make install` installs in place of what the build directory has: it knows where it lies ----

# The last place where an installed library looks for its code generator, and the command for attune-fetch, is LIBDIR.
# Both look beside themselves first, so an installation may be moved. What is used in the build directory looks nowhere
# else: installing changes nothing there, and tests find what they build. RPATH=no is for packages whose LIBDIR the
# system's loader knows.
RPATH ?= yes
LIB_FROM_BIN = $(shell realpath -ms --relative-to='$(BINDIR)' '$(LIBDIR)')
RUN_PATH = $(if $(filter no,$(RPATH)),,$$ORIGIN:$$ORIGIN/$(LIB_FROM_BIN))
INSTALLED = $(LIBDIR)/attune $(RUN_PATH)
PLACED_SRC := src/compiler/codegen_path.c tools/common/plugin_file.c
placed = $(patsubst %.c,$(BUILD)/installed/obj/%.o,$(filter $(PLACED_SRC),$(1))) \
	$(call obj,$(filter-out $(PLACED_SRC),$(1)))
$(call placed,$(PLACED_SRC)): $(BUILD)/installed/obj/%.o: %.c $(call flags,INSTALLED) | $(GENERATOR_ID)
	@mkdir -p $(@D)
	$(call say,cc $< for $(LIBDIR))
	$(Q)$(CC) $(BASE_CFLAGS) $(INCLUDES) -DATTUNE_PLUGIN_DIR='"$(LIBDIR)/attune"' $(CPPFLAGS) -MMD -MP -c $< -o $@
$(call placed,src/compiler/codegen_path.c): INCLUDES = -Isrc -I$(BUILD)/gen
$(call placed,tools/common/plugin_file.c): INCLUDES = -Itools -Isrc/base
$(BUILD)/installed/libattune.so.0: $(call placed,$(LIB_SRC)) $(call obj,$(DSO_SRC)) src/api/exports.map
	$(call link_library)
$(BUILD)/installed/libattune.a: $(call placed,$(LIB_SRC))
	$(link_archive)
$(BUILD)/installed/attune-codegen-worker: $(call placed,$(WORKER_SRC) src/compiler/codegen_path.c) \
		$(BUILD)/libattune-internal.a
	$(link_worker)
$(BUILD)/installed/attune: $(call placed,$(TOOL_SRC) $(BOTH_SRC)) $(BUILD)/libattune-reference.a $(BUILD)/libattune.so \
		$(call flags,INSTALLED)
	$(call link_command,$(RUN_PATH))

# It lies beside the code generator, below its library.
$(BUILD)/installed/libggml-attune.so: $(BUILD)/libattune.so $(call flags,INSTALLED)
	$(call link_adapter,$(if $(filter no,$(RPATH)),,$$ORIGIN/..))

$(BUILD)/installed/attune-lab: $(call obj,$(LAB_SRC)) $(addprefix $(BUILD)/libattune,-tool.a -reference.a .so) \
		$(call flags,INSTALLED)
	$(call link_command,$(RUN_PATH))

# ---- Installing ----

# install_text TEMPLATE DIRECTORY: with what stands between @ put in; directories below PREFIX are named by it. The file
# is written in the build directory first, because the mode of a new file depends on the umask.
below_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
GENERATED = $(BUILD)/installed/$(notdir $(1:.in=))
define install_text
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(call below_prefix,$(LIBDIR))|; s|@VERSION@|$(VERSION)|' \
	-e 's|@INCLUDEDIR@|$(call below_prefix,$(INCLUDEDIR))|' \
	-e "s|@INCLUDE_FROM_CMAKE@|$$(realpath -ms --relative-to='$(LIBDIR)/cmake/attune' '$(INCLUDEDIR)')|" \
	$(1) > $(GENERATED)
	install -m 644 $(GENERATED) $(2)
endef
IN_BIN = $(DESTDIR)$(BINDIR)
IN_LIB = $(DESTDIR)$(LIBDIR)
IN_DOC = $(DESTDIR)$(DOCDIR)
DOCS = $(wildcard docs/*.md docs/*.svg docs/*.png) docs/attune.1
# What those pages link to, in the same places. Examples come without their data, which is large.
DOCS_TOP = LICENSE README.md CHANGELOG.md CONTRIBUTING.md
EXAMPLES = $(wildcard examples/*.c examples/*.h examples/*.cpp examples/ir/*.air examples/python/*.py \
	$(addprefix examples/minilm/*.,md c py txt) $(addprefix examples/engine/*.,md c h py) \
	$(addprefix examples/engine/static/*.,c h sh))
LINKED_DIRS = examples/engine/static examples/engine examples/ir examples/minilm examples/python include
INSTALLED_PRODUCTS = $(addprefix $(BUILD)/installed/,attune attune-codegen-worker libattune.so.0 libattune.a \
	libggml-attune.so)
install: all $(INSTALLED_PRODUCTS)
install: ## install below PREFIX (/usr/local), libraries into LIBDIR (PREFIX/lib), DESTDIR before them
	install -d $(IN_BIN) $(addprefix $(IN_LIB)/,attune pkgconfig cmake/attune) $(DESTDIR)$(INCLUDEDIR)/attune/expert \
		$(addprefix $(IN_DOC)/,docs $(LINKED_DIRS)) \
		$(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(BASHCOMPDIR) $(DESTDIR)$(ZSHCOMPDIR)
	install -m 755 $(BUILD)/installed/attune $(IN_BIN)/attune
	install -m 644 $(BUILD)/installed/libattune.so.0 $(BUILD)/installed/libattune.a $(IN_LIB)
	ln -sf libattune.so.0 $(IN_LIB)/libattune.so
	install -m 644 $(addprefix $(BUILD)/,libattune-codegen.so libattune-tier0.so installed/libggml-attune.so) \
		$(IN_LIB)/attune
	install -m 755 $(BUILD)/installed/attune-codegen-worker $(BUILD)/attune-fetch $(IN_LIB)/attune
	install -m 644 include/attune.h include/attune.hpp $(DESTDIR)$(INCLUDEDIR)
	install -m 644 include/attune/*.h $(DESTDIR)$(INCLUDEDIR)/attune
	install -m 644 include/attune/expert/*.h $(DESTDIR)$(INCLUDEDIR)/attune/expert
	$(call install_text,attune.pc.in,$(IN_LIB)/pkgconfig)
	$(call install_text,cmake/attuneConfig.cmake.in,$(IN_LIB)/cmake/attune)
	$(call install_text,cmake/attuneConfigVersion.cmake.in,$(IN_LIB)/cmake/attune)
	install -m 644 docs/attune.1 $(DESTDIR)$(MANDIR)/man1/attune.1
	install -m 644 completions/attune.bash $(DESTDIR)$(BASHCOMPDIR)/attune
	install -m 644 completions/_attune $(DESTDIR)$(ZSHCOMPDIR)/_attune
	install -m 644 $(DOCS_TOP) $(IN_DOC)
	install -m 644 $(DOCS) $(IN_DOC)/docs
	for file in $(EXAMPLES); do install -m 644 $$file $(IN_DOC)/$$file || exit; done
	for header in attune.h attune.hpp attune; do \
		ln -sfn $(shell realpath -ms --relative-to='$(DOCDIR)/include' '$(INCLUDEDIR)')/$$header \
			$(IN_DOC)/include/$$header || exit; done

install-lab: install $(BUILD)/installed/attune-lab ## the same, and attune-lab with its manual
	install -m 755 $(BUILD)/installed/attune-lab $(IN_BIN)/attune-lab
	install -m 644 lab/attune-lab.1 $(DESTDIR)$(MANDIR)/man1/attune-lab.1

STRIP ?= $(shell $(CC) -print-prog-name=strip)
.PHONY: install-strip
install-strip: install ## the same without symbols for debuggers
	$(STRIP) $(IN_BIN)/attune $(addprefix $(IN_LIB)/,libattune.so.0 attune/libattune-codegen.so \
		attune/libattune-tier0.so attune/libggml-attune.so attune/attune-codegen-worker attune/attune-fetch)
	$(STRIP) --strip-debug $(IN_LIB)/libattune.a

# CODEGEN=no: a wheel without the code generator, for systems with glibc 2.28. It runs kernels that are in a cache.
PYTHON ?= python3
CODEGEN ?= yes
.PHONY: wheel
wheel: ## a Python wheel with all that it needs, into build/dist/ (pip fetches setuptools)
	@rm -rf $(BUILD)/dist
	@BUILD='$(BUILD)' ATTUNE_BUILD_CODEGEN='$(filter no,$(CODEGEN))' CC='$(CC)' STRIP='$(STRIP)' \
		LLVM_CONFIG='$(LLVM_CONFIG)' $(PYTHON) -m pip wheel -q --no-deps -w $(BUILD)/dist ./python
	@CODEGEN='$(CODEGEN)' bash scripts/check_wheel.sh $(BUILD)/dist/*.whl

RELEASE ?= $(BUILD)/release
.PHONY: release deb html
release: ## make and test a release of this commit in RELEASE (build/release): sources, packages, wheel, HTML, checksums
	@DEPS='$(DEPS)' bash scripts/deps.sh build release abi
	@bash scripts/release/release.sh '$(RELEASE)'
deb: ## Debian packages, tried and looked at by lintian, in build/deb/
	@DEPS='$(DEPS)' bash scripts/deps.sh build release
	@bash scripts/release/deb.sh . $(BUILD)/deb
html: ## the documentation as a site with search, in build/html/; pip installs Sphinx into build/site
	@DEPS='$(DEPS)' bash scripts/deps.sh docs
	@DEPS='$(DEPS)' BUILD='$(BUILD)' bash scripts/html.sh $(BUILD)/html

uninstall: ## remove what install installed
	rm -f $(addprefix $(IN_LIB)/attune/,libattune-codegen.so libattune-tier0.so libggml-attune.so \
		attune-codegen-worker attune-fetch) \
		$(addprefix $(IN_LIB)/cmake/attune/attuneConfig,.cmake Version.cmake) \
		$(addprefix $(IN_DOC)/,$(DOCS_TOP) $(DOCS) $(EXAMPLES) $(addprefix include/attune,.h .hpp) \
			include/attune)
	rm -f $(IN_BIN)/attune $(addprefix $(IN_LIB)/libattune.,so.0 so a) $(IN_LIB)/pkgconfig/attune.pc \
		$(addprefix $(DESTDIR)$(INCLUDEDIR)/,attune.hpp $(patsubst include/%,%,$(HEADERS))) \
		$(addprefix $(DESTDIR)$(MANDIR)/man1/attune,.1 -lab.1) $(IN_BIN)/attune-lab \
		$(DESTDIR)$(BASHCOMPDIR)/attune $(DESTDIR)$(ZSHCOMPDIR)/_attune
	for dir in $(IN_LIB)/attune $(IN_LIB)/cmake/attune $(addprefix $(DESTDIR)$(INCLUDEDIR)/attune,/expert /) \
		$(addprefix $(IN_DOC)/,docs $(LINKED_DIRS) examples) $(IN_DOC); do rmdir $$dir 2>/dev/null || :; done
