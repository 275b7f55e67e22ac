"""inface inside of training frameworks, one module for each.

Nothing is imported until one of these modules is, and a module imports its framework alone:

- :mod:`inface.integrations.lightning`: a callback for Lightning.
- :mod:`inface.integrations.transformers`: a callback and an optimizer for the ``Trainer`` of transformers.
- :mod:`inface.integrations.accelerate`: gap and report of an optimizer that Accelerate has wrapped.
- :mod:`inface.integrations.skorch`: networks whose ``optimizer__sets`` and ``optimizer__density`` scikit-learn can search.
- :mod:`inface.integrations.loggers`: TensorBoard, Weights & Biases and MLflow for ``inface train --log``.
- :mod:`inface.integrations.watch`: what all of these log, for a loop or a framework of your own.
"""
