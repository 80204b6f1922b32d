# Needs Python 3.11 to 3.13 and Java 17 or newer; everything else goes into .venv, made by the first target that needs it.
# Works with GNU make 3.81 and any POSIX shell.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-tables tweets test quick rare browser fuzz golden histories model contracts test-yarn submit-kills aftermath compat bench site lint types imports words format venv lock java archive clean

# What Airflow and Spark start is started with the environment's python, too.
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH"
# Without .pyc files every Airflow process starts three times slower.
unexport PYTHONDONTWRITEBYTECODE
# Where class archives lie: with the Spark that they are of (docs/how-to/choose-a-spark.md).
ARCHIVES := AIRFLOW_TRIDENT_CLASS_ARCHIVES="$(CURDIR)/.venv/class-archives"
# Extra arguments: make test ARGS="-k ledger"
ARGS :=
# Simulated histories of each kind: make histories HISTORIES=100000
HISTORIES := 1000
# Killed tasks of each operator at each point: make submit-kills KILLS=1000
KILLS := 10
# Seconds of each fuzzer, and which of them: make fuzz SECONDS=3600 FUZZ="csv json"
SECONDS := 60
FUZZ :=
# What `make test-yarn` runs.
YARN := tests/yarn tests/integration/test_on_a_cluster.py tests/contracts/test_hdfs_storage.py tests/contracts/test_hdfs_sinks.py \
	tests/contracts/test_storage.py tests/contracts/test_hdfs_tables.py tests/integration/test_file_spout_on_hdfs.py
# Test processes: four more than cores, because tests wait a quarter of their time for servers and disks; two more where the
# machine has less than 3 GB of memory for each process. WORKERS=0 runs all tests in one process.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN); pages=$$(getconf _PHYS_PAGES 2>/dev/null || echo 0); \
	echo $$((cores + 2 + 2 * (pages / 1024 * $$(getconf PAGESIZE) / 1048576 >= 3 * (cores + 4)))))
# A test that ended its process is tried again in the next one; a second such end, of whatever test, ends the run.
APART := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 1

help:
	@echo "make demo      exactly-once batches through Airflow, Spark and ZooKeeper, with attempts killed on the way"
	@echo "make demo-tables   Spark jobs and scripts into Delta and Iceberg tables, killed and cleared on the way"
	@echo "make tweets    the same with tweets in Redis, three counts in one atomic step"
	@echo "make test      all tests (ARGS='-k ledger' for some)"
	@echo "make quick     rules, types, layers and unit tests (ARGS=tests/contracts/test_engine.py for others)"
	@echo "make rare      the tests that take minutes: the demonstration and groups of Spark killed everywhere, the class archive"
	@echo "make browser   the page in a real browser (Debian: apt install chromium), and the screenshots of the documents"
	@echo "make fuzz SECONDS=3600   random csv and JSON in tiny blocks, beside Python's own readers, for so long each"
	@echo "make golden    write the golden plans again, after a change that was meant to alter them"
	@echo "make histories HISTORIES=100000   so many simulated histories of each kind, on all cores; goes on where the last run ended"
	@echo "make model     every configuration of the protocol's model that ends, and the model without each of its guards"
	@echo "make contracts every promise over every ledger and store, in all products"
	@echo "make test-yarn transactions, drains and staging on a real YARN and HDFS (fetches 70 MB by Maven)"
	@echo "make submit-kills KILLS=10   tasks killed while they submit: how many drivers work, SparkSubmitOperator's and ours"
	@echo "make aftermath   what each way of writing a batch leaves after a retry, a kill and a clear: docs/benchmarks.md"
	@echo "make compat    engines on Spark 3.5 to 4.3, tasks on Airflow 3.1 and 3.2: docs/compatibility.md"
	@echo "make bench     the measurements behind benchmarks/README.md"
	@echo "make site      the documentation as a site, into .site; a broken link ends it"
	@echo "make lint      ruff: rules and format"
	@echo "make types     mypy, strict"
	@echo "make imports   the layers of the package"
	@echo "make reference the tables of commands, options and fields in docs/reference, from the code"
	@echo "make words     breaches of the rules for words, in documents and texts of the package; a lower ceiling is written"
	@echo "make format    let ruff correct what it can"
	@echo "make venv      only fill .venv (the other targets do it, too)"
	@echo "make lock      write the locks of requirements/ again (needs uv; ARGS=--upgrade for newer versions)"
	@echo "make clean     remove caches and the demo's folder; .venv stays"

demo: java venv
	@$(RUN) python -m demo $(ARGS)

demo-tables: java venv
	@$(RUN) python -m demo.tables $(ARGS)

tweets: java venv
	@$(RUN) python -m demo.tweets $(ARGS)

test: archive
	@$(RUN) $(ARCHIVES) python -m pytest $(APART) $(ARGS)

quick: lint types imports
	@$(RUN) python -m pytest -q $(APART) $(or $(ARGS),tests/unit)

rare: java venv
	@$(RUN) python -m pytest -m rare $(ARGS)

browser: java venv
	@$(RUN) AIRFLOW_TRIDENT_BROWSER=required UPDATE_SCREENSHOTS=1 python -m pytest tests/browser -m browser $(ARGS)

fuzz: venv
	@$(RUN) python -m tests.fuzz $(SECONDS) $(FUZZ)

golden: venv
	@$(RUN) UPDATE_GOLDEN=1 python -m pytest -q tests/unit/test_plan_golden.py tests/unit/test_qtopology_golden.py $(ARGS)
	@git --no-pager diff --stat -- tests/golden

histories: venv
	@$(RUN) python -m tests.simulation.runner $(HISTORIES) $(ARGS)

model: java venv
	@$(RUN) python -m tests.model.tlc $(ARGS)

contracts: java venv
	@$(RUN) AIRFLOW_TRIDENT_CONTRACTS=all python -m pytest $(APART) tests/contracts $(ARGS)

test-yarn: java venv
	@$(RUN) python -m pytest -m rare $(YARN) $(ARGS)

submit-kills: archive
	@$(RUN) $(ARCHIVES) python -m benchmarks.submit_kills $(KILLS)

aftermath: java venv
	@sh tools/bootstrap.sh dbt-venv
	@$(RUN) python -m benchmarks.aftermath --dbt .venv-dbt/bin/dbt --write $(ARGS)

compat: java venv
	@$(RUN) python -m tools.compat $(ARGS)

bench: java venv
	@$(RUN) python -m benchmarks $(ARGS)
	@$(RUN) python -m benchmarks.commit_phase
	@$(RUN) python -m benchmarks.whole_commit

site:
	@sh tools/bootstrap.sh site-venv
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build $(ARGS)

lint: venv
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .

types: venv
	@$(RUN) mypy

# without its cache, which remembers what was imported from a module that did not exist yet
imports: venv
	@$(RUN) lint-imports --no-logo --no-cache

# The counts of tools/words.json become lower where there are fewer breaches.
words: venv
	@$(RUN) python -m tools.words --write

reference: venv
	@$(RUN) python -m tools.reference_pages

format: venv
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

venv:
	@sh tools/bootstrap.sh venv

# Half a minute, once for each .venv: every Spark that the tests start is there in half the processor time.
archive: java venv
	@$(RUN) $(ARCHIVES) python -c 'from airflow_trident.engine.spark.sessions.archive import make_archive; make_archive()' \
		|| echo 'no class archive: the tests take longer'

java:
	@sh tools/bootstrap.sh java

lock:
	@sh tools/bootstrap.sh lock $(ARGS)

clean:
	@rm -rf .compat .site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .trident-demo .trident-tables .trident-tweets* build dist
	@find airflow_trident tests dags benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
