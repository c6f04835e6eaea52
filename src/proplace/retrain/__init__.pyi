from proplace.retrain.keras import StayWithin as StayWithin
from proplace.retrain.last_layer import Repair as Repair
from proplace.retrain.last_layer import repair as repair
from proplace.retrain.promised import Promised as Promised
from proplace.retrain.sklearn import refit_within as refit_within
from proplace.retrain.torch import stay_within as stay_within
