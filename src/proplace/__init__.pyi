from proplace.batch import read_results as read_results
from proplace.calibrate.delta import calibrate_delta as calibrate_delta
from proplace.certification import Certificate as Certificate
from proplace.certification import CertificationResult as CertificationResult
from proplace.core import errors as errors
from proplace.core.network import Network as Network
from proplace.core.shifts import Shifts as Shifts
from proplace.explain.proplace import Proplace as Proplace
from proplace.explain.results import Explanation as Explanation
from proplace.explain.results import Explanations as Explanations
from proplace.explain.robustness import certify as certify
from proplace.explain.robustness import output_range as output_range
from proplace.explain.robustness import worst_case as worst_case
from proplace.explain.words import Wording as Wording
from proplace.ledger.audit import Audit as Audit
from proplace.ledger.ledger import Ledger as Ledger
from proplace.loaders.model import Model as Model
from proplace.schema import Binary as Binary
from proplace.schema import Categorical as Categorical
from proplace.schema import Continuous as Continuous
from proplace.schema import Ordinal as Ordinal
from proplace.schema import Schema as Schema

from . import baselines as baselines
from . import calibrate as calibrate
from . import certification as certification
from . import report as report
from . import retrain as retrain
from . import schema as schema

__version__: str
