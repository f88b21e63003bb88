"""A classifier for scikit-learn: any mapping, its Fenchel-Young loss, and prediction sets.

scikit-learn is imported when the class is first asked for.

>>> from fenchel.integrations.sklearn import FenchelYoungClassifier
>>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
>>> classifier = FenchelYoungClassifier("sparsemax", C=10.0).fit(X, y)
>>> classifier.predict([[0.5], [2.5]])
array(['low', 'high'], dtype='<U4')
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ._classifier import FenchelYoungClassifier

__all__ = ["FenchelYoungClassifier"]


def __getattr__(name: str) -> object:
    if name != "FenchelYoungClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "this needs scikit-learn; install it with `pip install 'fenchel[sklearn]'`."
        ) from error
    from ._classifier import FenchelYoungClassifier

    return FenchelYoungClassifier
