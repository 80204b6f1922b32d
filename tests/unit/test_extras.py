"""Drivers that are not installed: one error that says what to install."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from airflow_trident.errors import ConfigurationError, MissingExtraError, Outcome
from airflow_trident.io.connections import require_extra


def test_an_installed_driver_is_imported() -> None:
    assert require_extra("json", "airflow-trident[redis]") is json


def test_a_missing_driver_is_one_configuration_error_that_names_the_extra() -> None:
    with pytest.raises(ConfigurationError) as caught:
        require_extra("absent_driver", "airflow-trident[redis]")
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, MissingExtraError)
    assert error.outcome is Outcome.FAIL
    assert str(error) == (
        "the module 'absent_driver' is not installed here. Install it: pip install \"airflow-trident[redis]\"."
    )


def test_a_driver_that_lacks_a_module_of_its_own_is_named_by_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver_with_a_gap.py").write_text("import absent_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"'absent_part'.*airflow-trident\[kafka\]"):
        require_extra("driver_with_a_gap", "airflow-trident[kafka]")
