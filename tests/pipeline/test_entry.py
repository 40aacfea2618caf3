"""The command line while its libraries are imported."""

import sys

from pipeline.entry import main


def test_ctrl_c_during_the_imports_ends_as_later(monkeypatch, capsys):
    class Interrupted:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "pipeline.main":
                raise KeyboardInterrupt
            return None

    monkeypatch.delitem(sys.modules, "pipeline.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    assert main() == 130
    assert capsys.readouterr().err == "interrupted before anything was written\n"
