"""Next steps after errors of scikit-learn, XGBoost, LightGBM, CatBoost and pandas."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
# First match wins: special before general.
# fmt: off
ROWS = (
    row(_ANY, r"incompatible dtype|has no attribute '(?:monotonic_cst|_fill_dtype|_missing_values)'|__setstate__",
        r"InconsistentVersionWarning|unpickle estimator|from the pickle", "stop",
        "The pickle is of scikit-learn {0}, here is {1}: install {0}, or fit and save the model again with "
        "this version.", log=r"from version ([\d.]+\w*) when using version ([\d.]+\d)"),
    row(_ANY, r"from the pickle has an incompatible dtype", "", "stop",
        "The pickle is of another scikit-learn: install the version that wrote it, or fit and save the model again."),
    row(_ANY, r"instance is not fitted yet|NotFittedError", "", "stop",
        "The estimator is used before fit {at}: call fit first, or load a fitted one, then launch_run again."),
    row(_ANY, r"inconsistent numbers of samples: \[(\d+), (\d+)\]", "", "stop",
        "X and y have {0} and {1} rows {at}: drop or split both by the same index, then launch_run again."),
    row(_ANY, r"Found array with 0 sample", "", "stop",
        "No row is left {at}: check the filter, the split and dropna() before it, then launch_run again."),
    row(_ANY, r"y contains previously unseen labels: ?(.{0,60})", "", "stop",
        "LabelEncoder did not see {0} in fit: fit it on all labels, or OrdinalEncoder(handle_unknown=...) {at}."),
    row(_ANY, r"Found unknown categories (.{1,60}?) in column", "", "stop",
        "The encoder did not see {0} in fit: set handle_unknown='ignore', or fit it on all categories {at}."),
    row(_ANY, r"Classification metrics can't handle a mix of (.{1,60})", "", "stop",
        "The metric gets {0}: turn scores into classes (argmax or a threshold) {at}, then launch_run again."),
    row(_ANY, r"Target is multiclass but average='binary'", "", "stop",
        "More than two classes: pass average='macro' (or 'weighted') to the metric {at}, then launch_run again."),
    row(_ANY, r"Unknown label type", "", "stop",
        "A classifier got continuous targets: cast them to int, or use a regressor {at}, then launch_run again."),
    row(_ANY, r"multi_class must be in|multi_class='raise'", "", "stop",
        "roc_auc_score needs multi_class='ovr' and probabilities of all classes {at}, then launch_run again."),
    row(_ANY, r"[Ss]pecial JSON characters in feature name|feature_names must be string, and may not contain", "",
        "stop", "Column names hold characters like [ ] < : , : rename them (re.sub(r'\\W+', '_', name)) {at}, then "
        "launch_run again."),
    row(_ANY, r"[Ff]or early stopping, at least one|at least 1 validation dataset for early stopping", "", "stop",
        "Early stopping needs validation data: pass valid_sets (eval_set, evals) {at}, or drop it, then "
        "launch_run again."),
    row(_ANY, r"label must be in \[0,1\] for logistic|base_score must be in \(0,1\)", "", "stop",
        "Binary logistic needs labels 0 and 1: encode them (LabelEncoder), or choose another objective {at}."),
    row(_ANY, r"bin size \d+ cannot run on GPU", "", "stop",
        "A column has too many bins for the GPU: max_bin=63 (or 255), or device_type=cpu, then launch_run again."),
    row(_ANY, r"libxgboost\S* .{0,40}could not be loaded|lib_lightgbm\S*: cannot|libgomp\.so\.1: cannot", "", "stop",
        "The OpenMP library is missing: install libgomp1 (conda: libgomp), then launch_run again."),
    row(_ANY, r"All features are either constant or ignored|There are no meaningful features", "", "stop",
        "No column varies: the data is constant or the wrong columns are dropped; look at df.describe() {at}."),
    row(_ANY, r"Usecols do not match columns.{0,60}: ?(\[.{1,80}\])|None of \[Index\((\[.{1,80}?\])", "", "stop",
        "The table has no columns {0}{1}: correct the names or the file {at} (print df.columns), then "
        "launch_run again."),
    row(_ANY, r"(?:\"?(\[['\"].{1,80}?['\"]\]) not (?:in index|found in axis))", "", "stop",
        "The table has no columns {0}: correct the names or the file {at} (print df.columns), then launch_run again."),
    row(_ANY, r"You are trying to merge on (\S+) and (\S+) columns", "", "stop",
        "The keys of merge are {0} and {1}: cast both to one type (astype) {at}, then launch_run again."),
    row(_ANY, r"Length of values \((\d+)\) does not match length of index \((\d+)\)", "", "stop",
        "{0} values go into a table of {1} rows {at}: make both of the same rows, then launch_run again."),
    row(_ANY, r"cannot reindex on an axis with duplicate|Index contains duplicate entries", "", "stop",
        "The index has duplicates {at}: reset_index(drop=True) or drop_duplicates() first, then launch_run again."),
)
# fmt: on
