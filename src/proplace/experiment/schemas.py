"""What the columns of the four data sets mean, and what a person could change about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.schema import Binary, Continuous, Linear, Schema

if TYPE_CHECKING:
    import pandas as pd


def adult(_: pd.DataFrame) -> Schema:
    """Census income: traits and the survey weight are fixed, age and schooling only grow."""
    fixed = True
    return Schema(
        [
            Continuous("age", 17, 90, step=1, direction="increasing", unit="years"),
            Continuous("fnlwgt", 12_285, 1_490_400, step=1, immutable=True),
            Continuous("education-num", 1, 16, step=1, direction="increasing"),
            Continuous("capital-gain", 0, 99_999, step=1, unit="dollars"),
            Continuous("capital-loss", 0, 4_356, step=1, unit="dollars"),
            Continuous("hours-per-week", 1, 99, step=1),
            Binary("marital-status", ["Married", "Non-Married"], immutable=fixed),
            Binary("native-country", ["Non-US", "US"], immutable=fixed),
            Binary("occupation", ["Managerial-Specialist", "Other"]),
            Binary("race", ["Non-White", "White"], immutable=fixed),
            Binary("relationship", ["Husband", "Non-Husband"], immutable=fixed),
            Binary("sex", ["Female", "Male"], immutable=fixed),
            Binary("workclass", ["Non-Private", "Private"]),
        ]
    )


def compas(_: pd.DataFrame) -> Schema:
    """Risk scores: traits are fixed, a count of past offences cannot go down."""
    return Schema(
        [
            Continuous("age", 18, 96, step=1, immutable=True, unit="years"),
            Binary("two_year_recid", immutable=True),
            Continuous("priors_count", 0, 38, step=1, direction="increasing"),
            Continuous("length_of_stay", -1, 799, step=1, unit="days"),
            Binary("c_charge_degree", ["F", "M"]),
            Binary("race", ["African-American", "Other"], immutable=True),
            Binary("sex", ["Female", "Male"], immutable=True),
        ]
    )


def gmc(_: pd.DataFrame) -> Schema:
    """Give Me Some Credit: age and dependants are fixed, counts are whole numbers."""
    return Schema(
        [
            Continuous("RevolvingUtilizationOfUnsecuredLines", 0, 771),
            Continuous("age", 21, 94, step=1, immutable=True, unit="years"),
            Continuous("NumberOfTime30-59DaysPastDueNotWorse", 0, 10, step=1),
            Continuous("DebtRatio", 0, 1299),
            Continuous("MonthlyIncome", 0, 49_750, step=1, unit="dollars"),
            Continuous("NumberOfOpenCreditLinesAndLoans", 0, 24, step=1),
            Continuous("NumberOfTimes90DaysLate", 0, 10, step=1),
            Continuous("NumberRealEstateLoansOrLines", 0, 4, step=1),
            Continuous("NumberOfTime60-89DaysPastDueNotWorse", 0, 8, step=1),
            Continuous("NumberOfDependents", 0, 4, step=1, immutable=True),
        ]
    )


def heloc(frame: pd.DataFrame) -> Schema:
    """Home equity credit: another lender's score is fixed, past delinquencies cannot go down.

    Whole numbers where the file has only these (everywhere in the repaired version).
    """
    late = ("NumTrades60Ever2DerogPubRec", "NumTrades90Ever2DerogPubRec")
    return Schema(
        [
            Continuous(
                str(name),
                float(column.min()),
                float(column.max()),
                step=1 if (column % 1 == 0).all() else None,
                immutable=name == "ExternalRiskEstimate",
                direction="increasing" if name in late else None,
            )
            for name, column in frame.items()
        ],
        rules=[
            Linear({late[0]: 1, late[1]: -1}, lower=0, name="90 days late is also 60 days late"),
            Linear(
                {"NumInqLast6M": 1, "NumInqLast6Mexcl7days": -1},
                lower=0,
                name="inquiries without the last week are among all inquiries",
            ),
        ],
    )


def free(schema: Schema) -> Schema:
    """Treat features as the paper does: numbers anywhere in their range, categories legal, no rule."""
    return Schema(
        [
            Binary(feature.name, feature.values)
            if isinstance(feature, Binary)
            else Continuous(feature.name, feature.lower, feature.upper)
            for feature in schema.features
            if isinstance(feature, (Binary, Continuous))
        ]
    )
